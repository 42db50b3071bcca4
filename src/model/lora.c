/* Low-rank adapters (LoRA, arXiv 2106.09685, as PEFT builds them): a linear layer W that is frozen
 * gets y = W x + (alpha / rank) B (A x) with A [rank, in] and B [out, rank]. Only A, B, the tables
 * of lora.modules_to_save and the rows of lora.tokens are trained (builder.c). A starts with normal
 * values of deviation 1 / sqrt(3 in). PEFT draws A from kaiming_uniform_(a = sqrt(5)), U(-1 /
 * sqrt(in), 1 / sqrt(in)), of the same deviation (peft/tuners/lora/layer.py). B starts at zero, so
 * that the model starts as it was. Called by the families; owns nothing.
 *
 * The adapter of NAME.weight has the parameters NAME.lora_A.weight and NAME.lora_B.weight. The A
 * matrices of layers that share a GEMM are contiguous and share a GEMM too.
 *
 * If ranks divide a layer's output, each rank has all of A and its rows of B. If ranks divide its
 * input, each rank has its columns of A and all of B. The adapter's result is then divided like the
 * layer's own result, and so are the gradients. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "model/builder.h"
#include "ops/activation/activation.h"
#include "ops/fp8/fp8.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

/* A layer with an adapter, one of the layers that a weight views. */
typedef struct Adapted {
    Parameter layer;     /* a copy, because the graph's own moves when it grows */
    LoraColumns columns; /* the columns of the output that this rank computes with it; count 0: none */
    int64_t skipped;     /* rows of its B before the first of these columns */
} Adapted;

/* The adapters of one part of a layer, for the columns that this rank computes. */
typedef struct Adapters {
    TensorId down, up; /* [count * rank, in] and [sum of columns, rank] */
    int count;         /* 0: none */
    LoraColumns columns[LORA_MAX_ADAPTERS];
} Adapters;

char *parameter_module(const char *parameter) {
    size_t stem = strlen(parameter) - (ends_with(parameter, ".weight") ? strlen(".weight") : 0);
    return memory_format("%.*s", (int)stem, parameter);
}

/* Returns whether a layer gets an adapter, in training or from an AdapterSet in generation. */
static bool gets_adapter(const Builder *b, const char *module, LoraGroup group) {
    const AdapterSet *set = &b->slot_sizes.adapters;
    for (int i = 0; i < set->count; i++)
        if (lora_selects(&set->items[i], module, group)) return true;
    return lora_selects(b->lora, module, group);
}

/* Finds the layers with adapters among the layers NAME.weight [out, in] that `weight` views, in
 * order, and returns their number. This rank computes rows `rows` of the view, which are the
 * columns of the output from `column` on. */
static int find_adapted(
    const Builder *b, TensorId weight, CutShare rows, int64_t column, LoraGroup group, Adapted found[LORA_MAX_ADAPTERS]) {
    const Graph *graph = b->graph;
    ByteSpan span = graph_state_span(graph, weight);
    int64_t end_row = 0;
    int count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->offset < span.begin || p->offset >= span.end) continue;
        SCOPED_FREE char *module = parameter_module(p->name);
        int64_t first_row = end_row;
        end_row += p->shape[0];
        if (!gets_adapter(b, module, group)) continue;
        int64_t first = int_max(first_row, rows.first), end = int_min(end_row, rows.first + rows.count);
        assert(count < LORA_MAX_ADAPTERS);
        found[count++] =
            (Adapted){.layer = *p, .columns = {column + first - rows.first, int_max(0, end - first)}, .skipped = first - first_row};
    }
    return count;
}

/* Declares NAME.lora_A.weight [rank, in] or NAME.lora_B.weight [out, rank] for each layer,
 * contiguously, and views them as one matrix. Ranks divide it as they divide the layer, along the
 * dimension that both have. */
static TensorId declare_adapter(Graph *graph, const Adapted *adapted, int count, bool down, int64_t rank, double std) {
    TensorId matrices[LORA_MAX_ADAPTERS];
    for (int i = 0; i < count; i++) {
        const Parameter *layer = &adapted[i].layer;
        int64_t shape[] = {down ? rank : layer->whole[0], down ? layer->whole[1] : rank};
        Cut cut = layer->cut.dimension == down ? layer->cut : (Cut){0};
        SCOPED_FREE char *module = parameter_module(layer->name), *name = memory_format("%s.%s.weight", module, down ? "lora_A" : "lora_B");
        matrices[i] = graph_cut_parameter(graph, name, PARAMETER_MATRIX, 2, shape, &cut, 0, std, i > 0);
    }
    return graph_fuse(graph, matrices, count);
}

/* The deviation of U(-1 / sqrt(in), 1 / sqrt(in)). */
static double deviation(int64_t in) { return 1 / sqrt(3.0 * (double)in); }

/* (alpha / rank) A x, or with the factor of rsLoRA */
static TensorId scaled(const Builder *b, TensorId u) {
    double factor = lora_factor(b->lora);
    return factor == 1 ? u : op_scale(b->graph, u, factor);
}

/* Returns the adapters of one part for its columns, which begin at `column`. A layer of which this
 * rank computes no columns still has an adapter, as on the other ranks. */
static Adapters adapters_of(Builder *b, TensorId weight, CutShare rows, int64_t column, LoraGroup group) {
    Graph *graph = b->graph;
    int64_t rank = b->lora ? b->lora->rank : 0;
    Adapted found[LORA_MAX_ADAPTERS];
    Adapters adapters = {0};
    int count = rank ? find_adapted(b, weight, rows, column, group, found) : 0, first = 0, used = 0;
    if (!count) return adapters;
    graph->frozen = false;
    /* [count * rank, in] and [sum of out, rank] */
    TensorId down = declare_adapter(graph, found, count, true, rank, deviation(found[0].layer.whole[1]));
    TensorId up = declare_adapter(graph, found, count, false, rank, 0);
    graph->frozen = true;
    int64_t before = 0, sum = 0;
    for (int i = 0; i < count; i++) {
        if (!used) first = i;
        if (!found[i].columns.count) {
            if (!used) before += found[i].layer.shape[0];
            continue;
        }
        if (!used) before += found[i].skipped;
        adapters.columns[used++] = found[i].columns;
        sum += found[i].columns.count;
    }
    adapters.count = used;
    if (!used) return adapters;
    adapters.down = used < count ? graph_slice(graph, down, first * rank, used * rank) : down;
    adapters.up = sum < graph_rows(graph, up) ? graph_slice(graph, up, before, sum) : up;
    return adapters;
}

static TensorId project_down(const Builder *b, TensorId x, const Adapters *adapters) {
    return scaled(b, op_linear(b->graph, x, adapters->down, TENSOR_NONE, false));
}

static TensorId adapt(const Builder *b, TensorId x, TensorId y, const Adapters *adapters) {
    if (!adapters->count) return y;
    return op_lora(b->graph, y, project_down(b, x, adapters), adapters->up, adapters->columns, adapters->count);
}

/* -- Several adapters of generation ----------------------------------------------------------------------------------- */

int64_t adapter_set_rank(const AdapterSet *set) {
    enum { CHUNK = 8 };
    int64_t rank = 0;
    for (int i = 0; i < set->count; i++) rank = int_max(rank, set->items[i].rank);
    return round_up(rank, CHUNK);
}

/* Records the places of a part's layers in their tables. */
static void record_places(Builder *b, const Adapted *found, int count, TensorId down, TensorId up) {
    int64_t adapters = b->slot_sizes.adapters.count, rank = adapter_set_rank(&b->slot_sizes.adapters);
    for (int64_t i = 0, row = 0; i < count; row += adapters * found[i++].columns.count) {
        AdapterPlace place = {.module = parameter_module(found[i].layer.name),
            .a = down,
            .b = up,
            .a_first = i * rank,
            .a_stride = count * rank,
            .b_first = row,
            .columns = found[i].columns.count,
            .skipped = found[i].skipped};
        array_append(b->places, b->place_count, place);
    }
}

/* A part of a layer: its weight, the rows of it that this rank computes, and the column of y at which their
 * results begin. */
typedef struct LayerPart {
    TensorId weight;
    CutShare rows;
    int64_t column;
} LayerPart;

/* Adds to y the result of each row's own adapter. A part has two tables: `down` holds, adapter by adapter,
 * the A matrices of all layers; `up` holds, layer by layer, the B matrices of all adapters. */
static TensorId adapt_groups(Builder *b, TensorId x, TensorId y, const LayerPart *part, LoraGroup group) {
    Graph *graph = b->graph;
    const AdapterSet *set = &b->slot_sizes.adapters;
    Adapted found[LORA_MAX_ADAPTERS];
    LoraGroups groups = {.offset = b->slots.groups};
    int count = set->count ? find_adapted(b, part->weight, part->rows, part->column, group, found) : 0;
    int64_t sum = 0, rank = adapter_set_rank(set);
    for (int i = 0; i < count; i++) {
        if (!found[i].columns.count) continue;
        sum += found[i].columns.count;
        groups.columns[groups.adapters] = found[i].columns;
        found[groups.adapters++] = found[i];
    }
    if (!groups.adapters) return y;
    int64_t down_shape[] = {set->count, groups.adapters * rank, graph_columns(graph, x)}, up_shape[] = {set->count * sum, rank};
    TensorId down = graph_tensor(graph, ARENA_STATE, TYPE_COMPUTE, 3, down_shape, "adapters_down");
    groups.b = graph_tensor(graph, ARENA_STATE, TYPE_COMPUTE, 2, up_shape, "adapters_up");
    record_places(b, found, groups.adapters, down, groups.b);
    groups.u = op_grouped_linear(graph, x, down, &(Dispatch){.offset = groups.offset, .rows = graph_rows(graph, x)});
    return op_lora_groups(graph, y, &groups);
}

/* -- Linear layers ------------------------------------------------------------------------------------------------------ */

static bool multiplies_in_fp8(const Builder *b, TensorId x, const Linear *linear) {
    TensorId w = linear->parts[0].w;
    return builder_is_fp8(b, graph_rows(b->graph, x), 0, graph_rows(b->graph, w), graph_columns(b->graph, w));
}

static MeshAxes summed_axes(const Linear *linear) { return linear->split == SPLIT_INPUT ? AXES_TENSOR : 0; }

/* Computes a layer of one part together with its adapters. */
static TensorId multiply_adapted(Builder *b, TensorId x, const Linear *linear, const Adapters *adapters) {
    AdaptedLinear layer = {.w = builder_read(b, linear->parts[0].w),
        .bias = linear->parts[0].bias,
        .sum = summed_axes(linear),
        .u = project_down(b, x, adapters),
        .a = adapters->down,
        .b = adapters->up,
        .factor = lora_factor(b->lora),
        .adapters = adapters->count};
    memcpy(layer.columns, adapters->columns, sizeof layer.columns);
    return op_adapted_linear(b->graph, x, &layer);
}

static TensorId multiply_base(Builder *b, TensorId x, const Linear *linear) {
    const LinearPart *part = &linear->parts[0];
    MeshAxes sum = summed_axes(linear);
    if (!multiplies_in_fp8(b, x, linear) || linear->parts[1].w) {
        LinearPart parts[LINEAR_PARTS];
        for (int i = 0; i < LINEAR_PARTS; i++)
            parts[i] = (LinearPart){linear->parts[i].w ? builder_read(b, linear->parts[i].w) : TENSOR_NONE, linear->parts[i].bias};
        return op_linear_parts(b->graph, x, parts, sum);
    }
    return op_fp8_linear(b->graph, x, part->w, part->bias, sum, &b->config->fp8);
}

TensorId builder_linear(Builder *b, TensorId x, const Linear *linear, LoraGroup group) {
    Linear own = *linear;
    int64_t column = 0;
    if (linear->split == SPLIT_OUTPUT) x = builder_gather(b, x);
    for (int i = 0; i < LINEAR_PARTS; i++)
        if (own.rows[i].count) own.parts[i].w = graph_slice(b->graph, own.parts[i].w, own.rows[i].first, own.rows[i].count);
    Adapters adapters[LINEAR_PARTS] = {0};
    for (int i = 0; i < LINEAR_PARTS && own.parts[i].w; i++) {
        int64_t rows = graph_rows(b->graph, own.parts[i].w);
        adapters[i] = adapters_of(b, linear->parts[i].w, (CutShare){own.rows[i].first, rows}, column, group);
        column += rows;
    }
    assert(!adapters[0].count || !b->slot_sizes.adapters.count);
    bool together = adapters[0].count && !own.parts[1].w && !multiplies_in_fp8(b, x, &own);
    TensorId y = together ? multiply_adapted(b, x, &own, &adapters[0]) : multiply_base(b, x, &own);
    for (int i = 0; i < LINEAR_PARTS && !together; i++) y = adapt(b, x, y, &adapters[i]);
    column = 0;
    for (int i = 0; i < LINEAR_PARTS && own.parts[i].w; i++) {
        int64_t rows = graph_rows(b->graph, own.parts[i].w);
        y = adapt_groups(b, x, y, &(LayerPart){linear->parts[i].w, {own.rows[i].first, rows}, column}, group);
        column += rows;
    }
    return linear->split == SPLIT_INPUT ? builder_scatter(b, y) : y;
}

/* Declares NAME.lora_A.weight or NAME.lora_B.weight. */
static TensorId declare_half(Builder *b, const char *name, bool down, int rank, const int64_t *shape, const Cut *cut) {
    SCOPED_FREE char *full = memory_format("%s.%s.weight", name, down ? "lora_A" : "lora_B");
    b->graph->frozen = false;
    TensorId half =
        graph_cut_parameter(b->graph, full, PARAMETER_MATRIX, rank, shape, cut, 0, down ? deviation(shape[rank - 1]) : 0, false);
    b->graph->frozen = true;
    return half;
}

TensorId builder_router_linear(Builder *b, TensorId x, const char *name, int64_t out, bool biased, bool wide) {
    Graph *graph = b->graph;
    int64_t in = graph_columns(graph, x), rank = b->lora ? b->lora->rank : 0;
    TensorId weight = builder_matrix(b, name, out, in, b->config->init_std, NULL);
    TensorId y = op_linear(graph, x, weight, biased ? builder_bias(b, name, out, NULL) : TENSOR_NONE, wide);
    SCOPED_FREE char *module = parameter_module(graph_get(graph, weight)->name);
    if (!lora_selects(b->lora, module, LORA_ROUTER)) return y;
    TensorId down = declare_half(b, module, true, 2, (int64_t[]){rank, in}, &(Cut){0});
    TensorId up = declare_half(b, module, false, 2, (int64_t[]){out, rank}, &(Cut){0});
    TensorId u = scaled(b, op_linear(graph, x, down, TENSOR_NONE, false));
    return op_add(graph, y, op_linear(graph, u, up, TENSOR_NONE, wide));
}

TensorId builder_adapt_experts(Builder *b, const char *name, TensorId x, TensorId y, const Dispatch *dispatch) {
    Graph *graph = b->graph;
    if (!lora_selects(b->lora, name, LORA_EXPERTS)) return y;
    int64_t experts = b->config->experts, rank = b->lora->rank, in = graph_columns(graph, x), out = graph_columns(graph, y);
    const Parameter layer = graph->parameters[graph_find_parameter(graph, name)];
    if (b->lora->experts == LORA_SHARED) {
        TensorId down = declare_half(b, name, true, 2, (int64_t[]){rank, in}, &(Cut){0});
        TensorId up = declare_half(b, name, false, 2, (int64_t[]){out, rank}, &(Cut){0});
        graph_set_projections(graph, up, layer.projection_rows, layer.projections);
        TensorId u = scaled(b, op_linear(graph, x, down, TENSOR_NONE, false));
        return op_lora(graph, y, u, up, &(LoraColumns){0, out}, 1);
    }
    Cut cut = {.axes = AXES_EXPERTS, .blocks = 1, .rows = {experts}};
    TensorId down = declare_half(b, name, true, 3, (int64_t[]){experts, rank, in}, &cut);
    TensorId up = declare_half(b, name, false, 3, (int64_t[]){experts, out, rank}, &cut);
    graph_set_projections(graph, up, layer.projection_rows, layer.projections);
    return op_grouped_linear_add(graph, y, scaled(b, op_grouped_linear(graph, x, down, dispatch)), up, dispatch);
}

/* -- The list of targets -------------------------------------------------------------------------------------------- */

static LoraGroup module_group(const char *module) {
    if (strstr(module, ".mlp.experts.")) return LORA_EXPERTS;
    if (lora_is_router(module)) return LORA_ROUTER;
    return strstr(module, "attn.") ? LORA_ATTENTION : LORA_MLP;
}

bool lora_check_unmerged(const ModelConfig *config, const LoraConfig *lora, Error *error) {
    static const char *const kinds[] = {[LORA_EXPERTS] = "of experts", [LORA_ROUTER] = "of a router"};
    SCOPED(model_free) Model model = model_describe(config, lora, PRECISION_FP32);
    for (int i = 0; i < model.graph->parameter_count; i++) {
        const Parameter *p = &model.graph->parameters[i];
        bool adapter = ends_with(p->name, ".lora_A.weight") || ends_with(p->name, ".lora_B.weight");
        LoraGroup group = module_group(p->name);
        if (p->frozen || (adapter && group != LORA_EXPERTS && group != LORA_ROUTER)) continue;
        return error_set(error, ERROR_USAGE,
            "it has %s, %s, but several adapters at once can only have linear layers outside experts and routers: use it alone as MODEL, "
            "or merge it with smelt convert",
            p->name, adapter ? kinds[group] : "a table of the base");
    }
    return true;
}

static bool chooses_any(const char *target, size_t length, const Graph *graph) {
    for (int i = 0; i < graph->parameter_count; i++) {
        const char *name = graph->parameters[i].name;
        if (!ends_with(name, ".lora_A.weight")) continue;
        SCOPED_FREE char *module = memory_format("%.*s", (int)(strlen(name) - strlen(".lora_A.weight")), name);
        if (lora_target_is(target, length, module, module_group(module))) return true;
    }
    return false;
}

static bool has_adapted_experts(const Graph *graph) {
    for (int i = 0; i < graph->parameter_count; i++)
        if (ends_with(graph->parameters[i].name, ".lora_A.weight") && module_group(graph->parameters[i].name) == LORA_EXPERTS) return true;
    return false;
}

/* Checks that each name of lora.modules_to_save is the name of a table in the graph. */
static bool check_saved_tables(const Graph *graph, const ModelConfig *config, const LoraConfig *lora, Error *error) {
    for (const char *at = lora->modules_to_save ? lora->modules_to_save : ""; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        SCOPED_FREE char *name = memory_format("%.*s", (int)length, at);
        LoraConfig one = {.rank = lora->rank, .modules_to_save = name};
        bool found = false;
        for (int i = 0; i < graph->parameter_count && !found; i++) {
            const Parameter *p = &graph->parameters[i];
            SCOPED_FREE char *module = parameter_module(p->name);
            found = p->kind == PARAMETER_EMBEDDING && !p->frozen && lora_saves(&one, module, config->tied);
        }
        if (!found)
            return error_set(error, ERROR_USAGE,
                "lora.modules_to_save: %s is not the embedding or the head of this model: give embed_tokens (wte in GPT-2 and MPT) or "
                "lm_head; for adapters of linear layers, use lora.targets",
                name);
        at += length;
    }
    return true;
}

/* Checks that the model has the rows of lora.tokens. */
static bool check_lora_tokens(const ModelConfig *config, const LoraConfig *lora, Error *error) {
    const TokenRuns runs = lora_token_runs(lora);
    if (!runs.count) return true;
    int64_t last = runs.items[runs.count - 1].first + runs.items[runs.count - 1].count - 1;
    if (model_makes_images(config))
        return error_set(error, ERROR_USAGE, "lora.tokens=%s: a model of images has no tokens; leave it out", lora->tokens);
    return last < config->vocabulary ||
           error_set(error, ERROR_USAGE,
               "lora.tokens=%s: the model only has tokens below %lld; smelt convert MODEL FOLDER tokens.add=A,B adds tokens", lora->tokens,
               (long long)config->vocabulary);
}

/* The first target that chooses nothing in the graph, and its length; NULL: there is none. */
static const char *find_unknown(const LoraConfig *lora, const Graph *graph, size_t *length) {
    for (const char *at = lora->targets;; at++) {
        *length = strcspn(at, ",");
        if (!chooses_any(at, *length, graph)) return at;
        at += *length;
        if (!*at) return NULL;
    }
}

bool lora_check_named(const ModelConfig *config, const LoraConfig *lora, Error *error) {
    SCOPED(model_free) Model model = model_describe(config, lora, PRECISION_FP32);
    size_t length;
    const char *unknown = find_unknown(lora, model.graph, &length);
    return !unknown || error_set(error, ERROR_CHECKPOINT,
                           "target_modules in adapter_config.json names %.*s, which is not a linear layer of the model's blocks: smelt has "
                           "no adapters for it; merge the adapters with PEFT (merge_and_unload), and give the merged folder",
                           (int)length, unknown);
}

bool lora_check_targets(const ModelConfig *config, const LoraConfig *lora, Error *error) {
    if (!lora->rank) return true;
    if (!check_lora_tokens(config, lora, error)) return false;
    SCOPED(model_free) Model model = model_describe(config, lora, PRECISION_FP32);
    if (!check_saved_tables(model.graph, config, lora, error)) return false;
    size_t length;
    const char *unknown = find_unknown(lora, model.graph, &length);
    if (unknown)
        return error_set(error, ERROR_USAGE,
            "lora.targets: %.*s is not a linear layer of this model: `smelt train CONFIG plan=program` lists them; all, attention, mlp, "
            "experts and router each name a group",
            (int)length, unknown);
    return lora->experts == LORA_EACH || has_adapted_experts(model.graph) ||
           error_set(error, ERROR_USAGE,
               "lora.experts=shared needs adapters of experts, but lora.targets=%s names none: leave lora.experts out", lora->targets);
}
