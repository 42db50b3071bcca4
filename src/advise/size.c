/* The rules. Each rule looks at one dimension. Its cost is the difference in modeled time to the
 * same model with that dimension fixed. Owns nothing. */
#include "advise/size.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>

#include "base/math.h"
#include "base/scope.h"
#include "model/model.h"
#include "graph/op.h"

enum { ALIGNMENT = 64, CPU_ALIGNMENT = 32, NODE = 8, LARGEST_HEAD = 256 };

/* -- Estimates ----------------------------------------------------------------------------------------------------- */

static SizeEstimate estimate_layers(const SizeQuestion *question, const ModelConfig *model, int64_t layers) {
    ModelConfig small = *model;
    small.layers = layers;
    const Config *config = question->config;
    SCOPED(model_free)
    Model built =
        model_build(&small, config->precision, MODEL_TRAIN, config->batch.sequences, config->data.length, config_recompute(config));
    return (SizeEstimate){.parameters = (double)model_parameters(built.graph),
        .active = (double)model_active_parameters(built.graph, &small),
        .seconds = work_times(built.graph, &question->hardware, question->measured).total /
                   ((double)config->batch.sequences * (double)config->data.length)};
}

static double extrapolate(double two, double three, int64_t layers) { return two + (three - two) * (double)(layers - 2); }

SizeEstimate size_estimate(const SizeQuestion *question, const ModelConfig *model) {
    bool alike = model_has_equal_layers(model);
    if (model->layers <= 3 || !alike) return estimate_layers(question, model, model->layers);
    SizeEstimate two = estimate_layers(question, model, 2), three = estimate_layers(question, model, 3);
    return (SizeEstimate){.seconds = extrapolate(two.seconds, three.seconds, model->layers),
        .parameters = extrapolate(two.parameters, three.parameters, model->layers),
        .active = extrapolate(two.active, three.active, model->layers)};
}

/* Returns the fraction of the time per active parameter that `fixed` saves; a larger model may take
 * longer. */
static double saved_by(const SizeQuestion *question, const ModelConfig *fixed) {
    SizeEstimate now = size_estimate(question, &question->config->model), then = size_estimate(question, fixed);
    return 1 - then.seconds / then.active / (now.seconds / now.active);
}

/* -- Findings ------------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 6, 7))) static void add(
    Sizing *sizing, Verdict verdict, const char *dimension, int64_t value, double cost, const char *format, ...) {
    if (sizing->count == SIZE_FINDINGS) return;
    Finding *finding = &sizing->findings[sizing->count++];
    *finding = (Finding){.verdict = verdict, .dimension = dimension, .value = value, .cost = cost > 0.0005 ? cost : 0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
    sizing->faults += verdict == VERDICT_FAULT;
}

static int64_t alignment(const SizeQuestion *question) { return question->hardware.host_memory ? CPU_ALIGNMENT : ALIGNMENT; }

/* Checks a dimension of GEMMs, `offset` bytes into the model's configuration: rows of 16-byte
 * loads, whole tiles. */
static void check_multiple(Sizing *sizing, const SizeQuestion *question, const char *name, size_t offset) {
    ModelConfig fixed = question->config->model;
    int64_t *dimension = (int64_t *)((char *)&fixed + offset), value = *dimension, unit = alignment(question);
    *dimension = round_up(value, unit);
    if (*dimension == value) add(sizing, VERDICT_OK, name, value, 0, "a multiple of %lld", (long long)unit);
    else
        add(sizing, VERDICT_FAULT, name, value, saved_by(question, &fixed), "not a multiple of %lld: partial tiles%s; use %lld",
            (long long)unit, value % 8 ? " and loads narrower than 16 bytes" : "", (long long)*dimension);
}

void size_set_heads(ModelConfig *model, int64_t head_dim, int64_t queries) {
    if (model->rope_dim) return; /* the parts of such a head have sizes of their own */
    int64_t group = model->heads / model->kv_heads;
    model->head_dim = head_dim;
    model->kv_heads = int_max(llround((double)queries / (double)(head_dim * group)), 1);
    model->heads = model->kv_heads * group;
}

static void check_head(Sizing *sizing, const SizeQuestion *question) {
    const ModelConfig *model = &question->config->model;
    const Hardware *hardware = &question->hardware;
    int64_t width = work_head_width(model->head_dim), unit = alignment(question);
    if (!hardware->host_memory && model->head_dim > LARGEST_HEAD) {
        add(sizing, VERDICT_FAULT, "model.head_dim", model->head_dim, 0, "above %d, the limit of the attention kernels for GPUs",
            LARGEST_HEAD);
    } else if (model->head_dim % unit && width != model->head_dim) {
        ModelConfig fixed = *model;
        size_set_heads(&fixed, int_max(width, hardware->head_dim), model->heads * model->head_dim);
        add(sizing, VERDICT_FAULT, "model.head_dim", model->head_dim, saved_by(question, &fixed),
            "not a multiple of %lld: attention computes %lld columns for %lld; use heads of %lld", (long long)unit, (long long)width,
            (long long)model->head_dim, (long long)fixed.head_dim);
    } else if (model->head_dim < hardware->head_dim) {
        add(sizing, VERDICT_NOTE, "model.head_dim", model->head_dim, 0, "%s prefers heads of at least %d", hardware->title,
            hardware->head_dim);
    } else {
        add(sizing, VERDICT_OK, "model.head_dim", model->head_dim, 0, "a multiple of %lld, tiles of %lld", (long long)unit,
            (long long)width);
    }
}

static void check_tensor_bytes(Sizing *sizing, const SizeQuestion *question) {
    const ModelConfig *model = &question->config->model;
    const Hardware *hardware = &question->hardware;
    int64_t parts = question->tensor;
    if (parts < 2) return;
    const struct {
        const char *name;
        int64_t value, unit;
    } rules[] = {{"model.heads", model->heads, 1}, {"model.kv_heads", model->kv_heads, 1}, {"model.ffn", model->ffn, ALIGNMENT},
        {"model.vocabulary", model->vocabulary, ALIGNMENT}};
    for (int i = 0; i < 4; i++) {
        bool good = rules[i].value % (parts * rules[i].unit) == 0, padded = i == 3; /* a vocabulary can be padded */
        add(sizing,
            good     ? VERDICT_OK
            : padded ? VERDICT_NOTE
                     : VERDICT_FAULT,
            rules[i].name, rules[i].value, 0,
            good                 ? "divides over tensor=%lld"
            : rules[i].unit == 1 ? "does not divide over tensor=%lld"
                                 : "its share for tensor=%lld is not a multiple of %lld",
            (long long)parts, (long long)rules[i].unit);
    }
    if (!hardware->switched && parts != hardware->per_node)
        add(sizing, VERDICT_NOTE, "tensor", parts, 0,
            "links join GPUs one to one: groups of fewer than all %d of a node have %.0f%% of the bandwidth", hardware->per_node,
            100.0 * (double)(parts - 1) / (hardware->per_node - 1));
}

/* -- Experts ------------------------------------------------------------------------------------------------------- */

static void check_expert_count(Sizing *sizing, const SizeQuestion *question) {
    int64_t experts = question->config->model.experts, shared = round_up(experts, NODE);
    if (experts % NODE == 0 || NODE % experts == 0)
        add(sizing, VERDICT_OK, "model.experts", experts, 0, "divide evenly over the %d GPUs of a node", NODE);
    else
        add(sizing, VERDICT_FAULT, "model.experts", experts, 1 - (double)experts / (double)shared,
            "do not divide over the %d GPUs of a node: each has room for %lld, %.1f%% of it empty; use %lld or %lld", NODE,
            (long long)(shared / NODE), 100 * (1 - (double)experts / (double)shared),
            (long long)(shared > NODE ? shared - NODE : shared / 2), (long long)shared);
}

static void check_expert_tokens(Sizing *sizing, const SizeQuestion *question) {
    const Config *config = question->config;
    const ModelConfig *model = &config->model;
    int64_t tokens = config->batch.sequences * config->data.length * model->experts_per_token / model->experts,
            tile = question->hardware.tile_rows;
    if (tokens >= tile)
        add(sizing, VERDICT_OK, "batch.sequences", config->batch.sequences, 0, "%lld tokens for each expert fill tiles of %lld rows",
            (long long)tokens, (long long)tile);
    else
        add(sizing, VERDICT_NOTE, "batch.sequences", config->batch.sequences, 0,
            "%lld tokens for each expert do not fill a tile of %lld rows; use batch.sequences=%lld or more", (long long)tokens,
            (long long)tile, (long long)ceil((double)config->batch.sequences * (double)tile / fmax((double)tokens, 1)));
}

/* -- GEMMs of the whole program --------------------------------------------------------------------------------- */

/* Checks how much of a microbatch's time is lost to quantization and to GEMMs below the plateau. */
static void check_gemms(Sizing *sizing, const SizeQuestion *question) {
    const Config *config = question->config;
    SCOPED(model_free)
    Model model =
        model_build(&config->model, config->precision, MODEL_TRAIN, config->batch.sequences, config->data.length, config_recompute(config));
    double total = 0, quantized = 0, ramp = 0;
    for (int i = 0; i < model.graph->node_count; i++) {
        Work work = work_of_node(model.graph, &model.graph->nodes[i]);
        double seconds = work_seconds(&work, &question->hardware, question->measured);
        total += seconds;
        if (work.class > WORK_EXPERT_WEIGHTS) continue;
        GemmFit fit = gemm_fit(&work.gemm, &question->hardware);
        quantized += seconds * (1 - fit.tile * fit.wave);
        ramp += seconds * (1 - fit.ramp);
    }
    const double worth_telling = 0.1;
    int64_t sequences = config->batch.sequences;
    add(sizing, quantized / total > worth_telling ? VERDICT_NOTE : VERDICT_OK, "batch.sequences", sequences, 0,
        "tile and wave quantization of all GEMMs: %.1f%% of a microbatch's time", 100 * quantized / total);
    if (question->hardware.plateau > 0)
        add(sizing, ramp / total > worth_telling ? VERDICT_NOTE : VERDICT_OK, "batch.sequences", sequences, 0,
            "GEMMs under the plateau of %.0f GFLOP: %.1f%% of a microbatch's time", 1e-9 * question->hardware.plateau, 100 * ramp / total);
}

void size_check(Sizing *sizing, const SizeQuestion *question) {
    *sizing = (Sizing){0};
    if (!model_makes_images(&question->config->model))
        check_multiple(sizing, question, "model.vocabulary", offsetof(ModelConfig, vocabulary));
    check_head(sizing, question);
    check_multiple(sizing, question, "model.width", offsetof(ModelConfig, width));
    check_multiple(sizing, question, "model.ffn", offsetof(ModelConfig, ffn));
    if (family_has(family_of(&question->config->model), "model.router_width"))
        check_multiple(sizing, question, "model.router_width", offsetof(ModelConfig, router_width));
    check_tensor_bytes(sizing, question);
    if (question->config->model.experts) {
        if (question->hardware.per_node > 1) check_expert_count(sizing, question);
        check_expert_tokens(sizing, question);
    }
    check_gemms(sizing, question);
}
