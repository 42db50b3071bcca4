/* Searches for changes that make a plan fit. A table has the kinds of changes from cheap to
 * expensive; each kind has a function that makes it stronger by one step. If a kind does not
 * suffice alone, it is tried on top of full recomputation, and then also of the smallest
 * microbatch. Owns nothing. Called when a plan is refused, and by plan=true. */
#include "session/fit.h"

#include <stdint.h>
#include <string.h>

#include "base/log.h"
#include "base/math.h"
#include "base/scope.h"
#include "config/layout_rules.h"

enum { MOST_RANKS = 1024, USUAL_LORA_RANK = 16 };

typedef struct FitTrial {
    Config config;
    int rank, ranks;
    bool more; /* more ranks than available */
} FitTrial;

/* -- Kinds of changes ---------------------------------------------------------------------------------------------- */

/* Each function makes the trial's change stronger by one step; false: it is at its maximum. */

static bool without_copy(FitTrial *trial) {
    bool had = trial->config.checkpoint.async;
    trial->config.checkpoint.async = false;
    return had;
}

static bool without_kept_weights(FitTrial *trial) {
    bool had = trial->config.model.fp8.recipe != FP8_NONE && trial->config.model.fp8.keep_weights;
    trial->config.model.fp8.keep_weights = false;
    return had;
}

static bool higher_stage(FitTrial *trial) { return trial->ranks > 1 && ++trial->config.layout.zero <= 3; }

/* Doubles the ranks of each layer, within the same ranks. */
static bool more_tensor(FitTrial *trial) {
    char broken[256];
    LayoutConfig *layout = &trial->config.layout;
    layout->tp *= 2;
    if (layout->dp) layout->dp = int_max(trial->ranks / layout_copy_ranks(layout), 1);
    return !layout_breaks(&trial->config, trial->ranks, broken, sizeof broken);
}

static bool more_recomputation(FitTrial *trial) { return ++trial->config.recompute <= RECOMPUTE_BLOCK; }

static bool smaller_microbatch(FitTrial *trial) {
    bool even = trial->config.batch.sequences % 2 == 0 && !config_needs_microbatch(&trial->config);
    if (even) trial->config.batch.sequences /= 2;
    return even;
}

static bool without_gradients(FitTrial *trial) {
    OptimizerConfig *optimizer = &trial->config.optimizer;
    bool may = !optimizer->in_backward && !trial->config.lora.rank;
    optimizer->in_backward = true;
    optimizer->clip = 0;
    return may;
}

/* Tries offload alone, then with updates within the backward pass, which overlaps the copies. */
static bool state_in_host(FitTrial *trial) {
    bool had = config_offloads_state(&trial->config);
    trial->config.offload = config_offloads_saved(&trial->config) ? OFFLOAD_BOTH : OFFLOAD_OPTIMIZER;
    return !had || without_gradients(trial);
}

static bool activations_in_host(FitTrial *trial) {
    bool may = !config_offloads_saved(&trial->config) && trial->config.layout.pp == 1;
    trial->config.offload = config_offloads_state(&trial->config) ? OFFLOAD_BOTH : OFFLOAD_ACTIVATIONS;
    trial->config.recompute = RECOMPUTE_BLOCK;
    return may;
}

static bool pure_bf16(FitTrial *trial) {
    bool may = trial->config.precision == PRECISION_BF16;
    trial->config.precision = PRECISION_PURE_BF16;
    return may;
}

/* Tries ZeRO stages 1 to 3 with twice as many ranks, then with four times as many, and so on. */
static bool more_ranks(FitTrial *trial) {
    LayoutConfig *layout = &trial->config.layout;
    if (!trial->more || layout->zero >= 3) {
        trial->ranks *= 2;
        layout->zero = 0;
    }
    layout->zero++;
    layout->dp = trial->ranks / layout_copy_ranks(layout);
    layout->shard = 0;
    trial->rank = 0;
    trial->more = true;
    return trial->ranks <= MOST_RANKS;
}

/* Sets the maximum: if this does not suffice, no number of ranks does. */
static void most_ranks(FitTrial *trial) {
    LayoutConfig *layout = &trial->config.layout;
    int64_t copy = layout_copy_ranks(layout);
    layout->dp = divide_up(MOST_RANKS, copy);
    layout->zero = 3;
    layout->shard = 0;
    trial->ranks = (int)(layout->dp * copy);
    trial->rank = 0;
}

static bool adapters(FitTrial *trial) {
    bool may = trial->config.lora.rank == 0;
    trial->config.lora.rank = USUAL_LORA_RANK;
    return may;
}

typedef struct FitKind {
    bool (*stronger)(FitTrial *trial);
    const char *price;
    bool alone;                         /* not on top of other changes */
    void (*strongest)(FitTrial *trial); /* tried first, because there are many steps; NULL: there are few */
    bool device_memory;                 /* saves none where device memory is host memory */
} FitKind;

static const FitKind kinds[] = {
    {without_copy, "training waits while checkpoints are written", true},
    {without_kept_weights, "same results; casts weights in each microbatch", true},
    {higher_stage, "more communication", true},
    {more_recomputation, "same results; more time", true},
    {more_tensor, "communication in every layer", true},
    {smaller_microbatch, "same batch; smaller GEMMs", false},
    {without_gradients, "no gradient clipping", true},
    {activations_in_host, "same results; inputs of layers are copied over the host link", true, NULL, true},
    {state_in_host, "same results; state is copied over the host link in each step", false, NULL, true},
    {pure_bf16, "no fp32 master weights: other results", false},
    {more_ranks, "more devices", false, most_ranks},
    {adapters, "trains only adapters", false},
};
_Static_assert(sizeof kinds / sizeof *kinds <= MOST_FITS, "a fit for each kind");

/* -- Search -------------------------------------------------------------------------------------------------------- */

typedef struct Question {
    const Config *config;
    Device *device;
    int rank, ranks;
    int64_t available;
} Question;

/* Returns INT64_MAX for a configuration that training would refuse. */
static int64_t trial_bytes(const FitTrial *trial, Device *device) {
    SCOPED(session_free) Session session = {0};
    Error ignored = {0};
    bool planned = session_plan_rank(&session, &trial->config, device, trial->rank, trial->ranks, &ignored);
    return planned ? session_budget(&session).total : INT64_MAX;
}

/* Writes "recompute=block layout.zero=3 on 8 such machines". */
static void describe_change(const Config *before, int ranks, const char *device, const FitTrial *trial, char *text, size_t size) {
    size_t length = 0;
    Config now = trial->config;
    if (trial->ranks != ranks) {
        now.layout.dp = before->layout.dp;
        now.layout.shard = before->layout.shard;
    }
    for (size_t i = 0; i < config_table.count && length < size; i++) {
        const Option *option = &config_table.rows[i];
        char value[64], old[64];
        options_format_value(option, &now, value, sizeof value);
        options_format_value(option, before, old, sizeof old);
        if (strcmp(value, old) != 0)
            length += (size_t)snprintf(text + length, size - length, "%s%s=%s", length ? " " : "", option->name, value);
    }
    if (now.lora.rank && !before->lora.rank && !before->init[0] && length < size)
        length += (size_t)snprintf(text + length, size - length, " init=FOLDER");
    if (trial->ranks != ranks && length < size)
        snprintf(text + length, size - length, "%son %d such %s", length ? " " : "", trial->ranks, device);
}

/* The bases of a kind: nothing, full recomputation, and also the smallest microbatch if that keeps
 * the objective. */
enum { BASES = 3 };
static int count_bases(const FitKind *kind, const Config *config) { return kind->alone ? 1 : config_needs_microbatch(config) ? 2 : BASES; }

static FitTrial base_trial(const Question *question, int base) {
    FitTrial trial = {.config = *question->config, .rank = question->rank, .ranks = question->ranks};
    BatchConfig *batch = &trial.config.batch;
    if (base >= 1) trial.config.recompute = RECOMPUTE_BLOCK;
    if (base == 2) batch->sequences >>= __builtin_ctzll((unsigned long long)batch->sequences);
    return trial;
}

/* Plans a trial, which becomes the answer if it needs less memory. Returns whether it fits. */
static bool try_trial(const Question *question, const FitTrial *trial, Fit *best) {
    int64_t bytes = trial_bytes(trial, question->device);
    if (bytes >= best->bytes) return best->fits;
    best->bytes = bytes;
    best->fits = bytes <= question->available;
    const char *device = device_info(question->device)->host_memory ? "machines" : "devices";
    describe_change(question->config, question->ranks, device, trial, best->change, sizeof best->change);
    return best->fits;
}

/* Returns the first step of the kind that fits, or else the step that needs the least memory. */
static Fit try_kind(const FitKind *kind, const Question *question) {
    Fit best = {.bytes = INT64_MAX, .price = kind->price};
    for (int base = 0; base < count_bases(kind, question->config) && !best.fits; base++) {
        FitTrial trial = base_trial(question, base), strongest = trial;
        if (kind->strongest) kind->strongest(&strongest);
        if (kind->strongest && !try_trial(question, &strongest, &best)) continue;
        if (kind->strongest) best = (Fit){.bytes = INT64_MAX, .price = kind->price};
        while (kind->stronger(&trial) && !try_trial(question, &trial, &best)) continue;
    }
    return best;
}

int fit_recompute(const Config *config, Device *device, int rank, int ranks, int64_t available) {
    const double part = 0.97; /* of the free memory: libraries allocate some while they run */
    if (config->recompute != RECOMPUTE_AUTO) return config->recompute;
    FitTrial trial = {.config = *config, .rank = rank, .ranks = ranks};
    for (trial.config.recompute = config_least_recompute(config); trial.config.recompute < RECOMPUTE_BLOCK; trial.config.recompute++)
        if (available < 0 || (double)trial_bytes(&trial, device) <= part * (double)available) break;
    return trial.config.recompute;
}

int fit_search(const Config *config, Device *device, int rank, int ranks, int64_t available, Fit fits[MOST_FITS]) {
    Config settled = *config;
    settled.recompute = config->recompute == RECOMPUTE_AUTO ? config_least_recompute(config) : config->recompute;
    const Question question = {&settled, device, rank, ranks, available};
    FitTrial now = base_trial(&question, 0);
    int64_t before = trial_bytes(&now, device);
    int count = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].device_memory && device_info(device)->host_memory) continue;
        fits[count] = try_kind(&kinds[i], &question);
        count += fits[count].bytes < before;
    }
    return count;
}

void fit_print(const Fit *fits, int count, FILE *file) {
    if (count) fprintf(file, "ways to save memory, cheapest first (each planned)\n");
    for (int i = 0; i < count; i++) {
        char bytes[32];
        log_format_bytes((double)fits[i].bytes, bytes);
        fprintf(file, "  %-4s %10s  %s\n                   %s\n", fits[i].fits ? "fits" : "", bytes, fits[i].change, fits[i].price);
    }
}
