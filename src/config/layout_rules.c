/* The rules of layouts. A rule compares two numbers of a configuration: `part` must divide `whole`,
 * must not exceed it, or must equal it. To add a rule, add a row and the functions that compute its
 * numbers. Owns nothing. */
#include "config/layout_rules.h"

#include <math.h>
#include <string.h>

#include "base/math.h"
#include "config/family.h"
#include "config/needs.h"

int64_t layout_copy_ranks(const LayoutConfig *layout) { return layout->tp * layout->pp * layout->cp * layout->ep; }

int64_t layout_chunks(const LayoutConfig *layout) {
    bool chunked = layout->pp > 1 && layout->pp_schedule == PIPELINE_INTERLEAVED;
    return !chunked ? 1 : layout->pp_chunks ? layout->pp_chunks : 2;
}

int64_t layout_asked_ranks(const LayoutConfig *layout) { return layout_copy_ranks(layout) * (layout->dp ? layout->dp : 1); }

/* -- What rules compare -------------------------------------------------------------------------------------------- */

/* `ranks` is the number of ranks of the run, or 0 if it is not known. */
typedef int64_t Number(const Config *config, int64_t ranks);
typedef bool Condition(const Config *config, int64_t ranks);

#define NUMBER(name, value) \
    static int64_t name(const Config *config, int64_t ranks) { \
        (void)config, (void)ranks; \
        return value; \
    }
#define CONDITION(name, value) \
    static bool name(const Config *config, int64_t ranks) { \
        (void)config, (void)ranks; \
        return value; \
    }

NUMBER(run_ranks, ranks)
NUMBER(copy_ranks, layout_copy_ranks(&config->layout))
NUMBER(asked_ranks, layout_asked_ranks(&config->layout))
/* Ranks with different sequences: copies of the model, and ranks that divide its experts. */
NUMBER(copies, config->layout.dp ? config->layout.dp : ranks / layout_copy_ranks(&config->layout))
NUMBER(shard, config->layout.shard)
NUMBER(one, 1)
NUMBER(tp, config->layout.tp)
NUMBER(pp, config->layout.pp)
NUMBER(pieces, config->layout.pp *layout_chunks(&config->layout))
NUMBER(ep_tp, config->layout.ep * config->layout.tp)
NUMBER(chunks, 2 * config->layout.cp)
NUMBER(tokens_of_chunks, 4 * config->layout.cp)
NUMBER(heads, config->model.heads)
NUMBER(kv_heads, config->model.kv_heads)
NUMBER(delta_key_heads, config->model.delta_key_heads)
NUMBER(cp, config->layout.cp)
NUMBER(ffn, config->model.ffn)
NUMBER(dense_ffn, config->model.dense_ffn)
NUMBER(vocabulary, config->model.vocabulary)
NUMBER(layers, config->model.layers)
NUMBER(layers_of_stage, config->model.layers / config->layout.pp)
NUMBER(experts, config->model.experts)
NUMBER(length, config->data.length)
NUMBER(rows, config->batch.sequences * config->data.length / config->layout.cp)

CONDITION(ranks_known, ranks > 0)
CONDITION(copies_asked, ranks > 0 && config->layout.dp > 0 && layout_copy_ranks(&config->layout) == 1)
CONDITION(ranks_asked, ranks > 0 && config->layout.dp > 0)
CONDITION(copies_shard, config->layout.shard > 0 && (ranks > 0 || config->layout.dp > 0))
CONDITION(makes_images, family_of(&config->model)->makes_images)
CONDITION(is_tensor, config->layout.tp > 1)
CONDITION(copies_keys, config->layout.tp > config->model.kv_heads && family_of(&config->model)->repeats_key_heads)
CONDITION(shares_keys, config->layout.tp > 1 && !copies_keys(config, ranks))
CONDITION(is_normed_over_heads, config->layout.tp > 1 && family_norms_all_heads(&config->model))
CONDITION(is_quantized, config->lora.rank > 0 && config->lora.base != LORA_BASE_SAME)
CONDITION(is_dense, config->layout.tp > 1 && config->model.experts == 0)
CONDITION(mixes_layers, config->layout.tp > 1 && model_mixes_layers(&config->model))
CONDITION(shares_experts, config->layout.ep > 1 || (config->layout.tp > 1 && config->model.experts > 0))
CONDITION(is_chunked, layout_chunks(&config->layout) > 1)
CONDITION(is_context, config->layout.cp > 1)
CONDITION(looks_back, config->layout.cp > 1 && family_of(&config->model)->looks_back)
CONDITION(keeps_states, family_of(&config->model)->keeps_states)
CONDITION(saves_in_host, config_offloads_saved(config))
CONDITION(splits_states, config->layout.tp > 1 && family_of(&config->model)->keeps_states)

/* -- The table ----------------------------------------------------------------------------------------------------- */

typedef enum Relation { DIVIDES, AT_MOST, EQUALS } Relation;
static const char *const broken[] = {[DIVIDES] = "does not divide", [AT_MOST] = "is more than", [EQUALS] = "is not"};

typedef struct LayoutRule {
    Condition *applies; /* NULL: to every layout */
    const char *part;
    Number *part_value;
    Relation relation;
    const char *whole;
    Number *whole_value;
    const char *reason;
} LayoutRule;

CONDITION(has_prediction_layer, config->model.mtp > 0)

#define COPY "layout.tp x pp x cp x ep"
static const LayoutRule rules[] = {
    {makes_images, COPY, copy_ranks, AT_MOST, "the ranks of a copy", one, "an image model supports only layout.dp and layout.zero"},
    {is_tensor, "layout.tp", tp, DIVIDES, "model.heads", heads, "tensor parallelism splits the heads"},
    {shares_keys, "layout.tp", tp, DIVIDES, "model.kv_heads", kv_heads, "tensor parallelism splits the key heads"},
    {copies_keys, "model.kv_heads", kv_heads, DIVIDES, "layout.tp", tp, "each key head is copied to the same number of ranks"},
    {is_normed_over_heads, "layout.tp", tp, AT_MOST, "the ranks of one norm", one, "queries and keys of all heads are normalized together"},
    {is_quantized, "layout.tp x ep", ep_tp, AT_MOST, "the ranks of a quantized matrix", one, "lora.base quantizes whole matrices"},
    {is_dense, "layout.tp", tp, DIVIDES, "model.ffn", ffn, "tensor parallelism splits the MLP's columns"},
    {mixes_layers, "layout.tp", tp, DIVIDES, "model.dense_ffn", dense_ffn, "tensor parallelism splits the MLP's columns"},
    {is_tensor, "layout.tp", tp, AT_MOST, "model.vocabulary", vocabulary, "tensor parallelism splits the rows of embedding and head"},
    {is_tensor, "layout.tp", tp, DIVIDES, "batch.sequences x data.length / layout.cp", rows,
        "tensor parallelism splits the tokens between layers"},
    {NULL, "layout.pp", pp, AT_MOST, "model.layers", layers, "every pipeline stage needs a layer"},
    {has_prediction_layer, "layout.pp", pp, AT_MOST, "the stages of a model with model.mtp", one,
        "multi-token prediction reads the embedding and the last layer's result"},
    {saves_in_host, "layout.pp", pp, AT_MOST, "the stages with offload=activations or both", one,
        "a stage keeps the activations of several microbatches in device memory"},
    {is_chunked, "layout.pp x pp_chunks", pieces, AT_MOST, "model.layers", layers, "every chunk of a stage needs a layer"},
    {is_context, "2 x layout.cp", chunks, DIVIDES, "data.length", length,
        "each rank has one chunk from the front of a sequence and one from its end"},
    {looks_back, "4 x layout.cp", tokens_of_chunks, AT_MOST, "data.length", length,
        "convolutions read two tokens back, at most into the previous chunk"},
    {splits_states, "layout.tp", tp, DIVIDES, "model.delta_key_heads", delta_key_heads, "tensor parallelism splits the states"},
    {keeps_states, "layout.cp", cp, AT_MOST, "the ranks of a sequence", one, "states go from token to token"},
    {shares_experts, "layout.ep x layout.tp", ep_tp, DIVIDES, "model.experts", experts, "these ranks split the experts"},
    {copies_asked, "layout.dp", asked_ranks, EQUALS, "the ranks of the run", run_ranks, "start as many, or change the layout"},
    {ranks_asked, "layout.dp x tp x pp x cp x ep", asked_ranks, EQUALS, "the ranks of the run", run_ranks,
        "start as many, or change the layout"},
    {ranks_known, COPY, copy_ranks, DIVIDES, "the ranks of the run", run_ranks, "one copy of the model needs this number of ranks"},
    {copies_shard, "layout.shard", shard, DIVIDES, "copies of the model", copies, "each sharded copy has this number of ranks"},
};
enum { RULES = sizeof rules / sizeof *rules };

static bool rule_holds(const LayoutRule *rule, const Config *config, int64_t ranks) {
    if (rule->applies && !rule->applies(config, ranks)) return true;
    int64_t part = rule->part_value(config, ranks), whole = rule->whole_value(config, ranks);
    return rule->relation == DIVIDES ? whole > 0 && whole % part == 0 : rule->relation == AT_MOST ? part <= whole : part == whole;
}

static const LayoutRule *find_broken(const Config *config, int64_t ranks) {
    for (const LayoutRule *rule = rules; rule < rules + RULES; rule++)
        if (!rule_holds(rule, config, ranks)) return rule;
    return NULL;
}

/* "layout.tp=3", "2 x layout.cp = 6" */
static int describe_number(const char *name, int64_t value, char *text, size_t size) {
    return snprintf(text, size, strchr(name, ' ') ? "%s = %lld" : "%s=%lld", name, (long long)value);
}

/* Writes the multiples of `part` nearest to a length. */
static void describe_lengths(int64_t part, int64_t length, char *text, size_t size) {
    long long below = length / part * part, above = below + part;
    if (below) snprintf(text, size, " (it divides data.length=%lld and %lld)", below, above);
    else snprintf(text, size, " (it divides data.length=%lld)", above);
}

static void describe_rule(const LayoutRule *rule, const Config *config, int64_t ranks, char *text, size_t size) {
    char part[96], whole[96];
    describe_number(rule->part, rule->part_value(config, ranks), part, sizeof part);
    describe_number(rule->whole, rule->whole_value(config, ranks), whole, sizeof whole);
    size_t used = (size_t)snprintf(text, size, "%s %s %s", part, broken[rule->relation], whole);
    if (rule->whole_value == length && rule->relation == DIVIDES && used < size)
        describe_lengths(rule->part_value(config, ranks), config->data.length, text + used, size - used);
}

bool layout_breaks(const Config *config, int64_t ranks, char *text, size_t size) {
    const LayoutRule *rule = find_broken(config, ranks);
    if (rule) describe_rule(rule, config, ranks, text, size);
    return rule;
}

/* -- The nearest layout -------------------------------------------------------------------------------------------- */

/* The settings of a layout that the search may change. A valid size divides `whole`, or is at most
 * `whole`. */
static const struct {
    size_t offset;
    Relation relation;
    Number *whole;
} axes[] = {{offsetof(LayoutConfig, tp), DIVIDES, heads}, {offsetof(LayoutConfig, pp), AT_MOST, layers},
    {offsetof(LayoutConfig, pp_chunks), AT_MOST, layers_of_stage}, {offsetof(LayoutConfig, cp), DIVIDES, length},
    {offsetof(LayoutConfig, ep), DIVIDES, experts}, {offsetof(LayoutConfig, shard), DIVIDES, copies}};
enum { AXES = sizeof axes / sizeof *axes };

static int64_t *axis(LayoutConfig *layout, int index) { return (int64_t *)((char *)layout + axes[index].offset); }

typedef struct LayoutSearch {
    const LayoutConfig *given;
    int64_t ranks;
    Config trial;
    LayoutConfig best;
    double distance; /* of the best layout */
} LayoutSearch;

/* Returns how far a setting is from the given value, on a logarithmic scale. */
static double distance(int64_t value, int64_t given) { return given ? fabs(log2((double)value / (double)given)) : 0; }

/* The number of copies follows from the number of ranks, if the latter is known. */
static void try_layout(LayoutSearch *search, double far) {
    LayoutConfig *layout = &search->trial.layout;
    int64_t copy = layout_copy_ranks(layout), given = search->given->dp;
    layout->dp = given && search->ranks >= copy ? search->ranks / copy : given;
    far += distance(layout->dp, given);
    if (far >= search->distance || find_broken(&search->trial, search->ranks)) return;
    search->best = *layout;
    search->distance = far;
}

static void search_axes(LayoutSearch *search, int index, double far);

static void try_size(LayoutSearch *search, int index, double far, int64_t size) {
    int64_t *setting = axis(&search->trial.layout, index), given = *setting;
    *setting = size;
    search_axes(search, index + 1, far + distance(size, given));
    *setting = given;
}

/* Tries the given size and all other possible sizes of the axes from `index` on; an omitted setting
 * stays omitted. The distance bounds the search. */
static void search_axes(LayoutSearch *search, int index, double far) {
    if (far >= search->distance) return;
    if (index == AXES) {
        try_layout(search, far);
        return;
    }
    int64_t given = *axis(&search->trial.layout, index);
    bool divides = axes[index].relation == DIVIDES;
    search_axes(search, index + 1, far);
    if (!given) return;
    int64_t whole = int_max(axes[index].whole(&search->trial, search->ranks), 1);
    for (int64_t size = 1; size <= (divides ? whole / size : whole); size++) {
        if (!divides || whole % size == 0) try_size(search, index, far, size);
        if (divides && whole % size == 0) try_size(search, index, far, whole / size);
    }
}

/* "layout.dp=4 layout.tp=2" */
static void describe_nearest(const Config *config, int64_t ranks, char *text, size_t size) {
    LayoutSearch search = {.given = &config->layout, .ranks = ranks, .trial = *config, .distance = INFINITY};
    size_t used = 0;
    search_axes(&search, 0, 0);
    Config nearest = *config;
    nearest.layout = search.best;
    needs_drop_layout(&nearest);
    for (const Option *option = config_table.rows; option < config_table.rows + config_table.count && used < size; option++) {
        char value[32], given[32];
        options_format_value(option, &nearest, value, sizeof value);
        options_format_value(option, config, given, sizeof given);
        if (!strncmp(option->name, "layout.", 7) && strcmp(value, given) != 0)
            used += (size_t)snprintf(text + used, size - used, "%s%s=%s", used ? " " : "", option->name, value);
    }
}

/* Checks the rules for `ranks` ranks, with advice for `advised` ranks. */
static bool check_layout(const Config *config, int64_t ranks, int64_t advised, Error *error) {
    char text[256], nearest[256] = "";
    const LayoutRule *rule = find_broken(config, ranks);
    if (!rule) return true;
    describe_rule(rule, config, ranks, text, sizeof text);
    describe_nearest(config, advised, nearest, sizeof nearest);
    return error_set(error, ERROR_USAGE, "%s: %s; set %s", text, rule->reason, nearest);
}

bool layout_check(const Config *config, int64_t ranks, Error *error) { return check_layout(config, ranks, ranks, error); }

bool layout_check_early(const Config *config, int64_t started, Error *error) { return check_layout(config, 0, started, error); }
