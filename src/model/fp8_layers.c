/* Decides which linear layers are computed in fp8, and why others are not: the rule for building
 * models, and a list of the choices for the layers of a graph. Owns nothing. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/strings.h"
#include "config/lora_targets.h"
#include "model/model.h"
#include "ops/fp8/fp8.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/loss/loss.h"

enum { UNIT = 16 };

double fp8_layer_size(int64_t out, int64_t in, double expert_rows) {
    return 1 / (1 / (double)in + 1 / (double)out + (expert_rows > 0 ? 1 / expert_rows : 0));
}

Fp8Choice fp8_choose(const Fp8Config *fp8, bool training, int64_t rows, double expert_rows, int64_t out, int64_t in) {
    if (fp8->recipe == FP8_NONE) return FP8_NOT_ASKED;
    if (in % UNIT || out % UNIT) return FP8_UNEVEN;
    if (training ? rows % UNIT : fp8->uneven_rows && !(expert_rows > 0)) return FP8_UNEVEN_ROWS;
    return fp8_layer_size(out, in, expert_rows) < fp8->min_size ? FP8_TOO_SMALL : FP8_CHOSEN;
}

Fp8Choice fp8_choose_head(const Graph *graph, const ModelConfig *config, int64_t rows) {
    int64_t ranks = mesh_size(graph->mesh, AXES_TENSOR), share = config->vocabulary / ranks;
    if (config->vocabulary % ranks) share = 1;
    return config->fp8.head ? fp8_choose(&config->fp8, graph->training, rows, 0, share, config->width) : FP8_BY_RULE;
}

/* -- The list ------------------------------------------------------------------------------------------------------ */

/* Returns "self_attn.q_proj" for "model.layers.3.self_attn.q_proj.weight": the text after the last
 * number between dots. */
static void kind_of_layer(const char *name, char kind[FP8_LAYER_NAME]) {
    const char *start = name;
    for (const char *at = strchr(name, '.'); at; at = strchr(at + 1, '.')) {
        size_t digits = strspn(at + 1, "0123456789");
        if (digits && at[1 + digits] == '.') start = at + digits + 2;
    }
    size_t length = strlen(start);
    if (ends_with(start, ".weight")) length -= strlen(".weight");
    snprintf(kind, FP8_LAYER_NAME, "%.*s", (int)length, start);
}

/* Appends the kinds of all parameters that the weight views: "mlp.down_proj", or "q_proj, k_proj,
 * v_proj". The weight has the name of the first of them. */
static void name_layer(const Graph *graph, TensorId weight, char name[FP8_LAYER_NAME]) {
    int64_t rest = graph_elements(graph, weight);
    for (int i = graph_find_parameter(graph, graph_get(graph, weight)->name); rest > 0; rest -= graph->parameters[i++].count) {
        const Parameter *p = &graph->parameters[i];
        size_t used = strlen(name);
        char kind[FP8_LAYER_NAME];
        kind_of_layer(p->name, kind);
        const char *dot = strrchr(kind, '.'), *first = used ? strrchr(name, '.') : NULL;
        if (first && !strchr(name, ',')) memmove(name, first + 1, strlen(first)), used = strlen(name);
        snprintf(name + used, FP8_LAYER_NAME - used, "%s%s", used ? ", " : "", used && dot ? dot + 1 : kind);
    }
}

/* Routers and adapters use op_linear with any recipe. */
static bool is_by_rule(const char *name) { return lora_is_router(name) || strstr(name, "lora_"); }

/* Finds the weight of a forward node that is a linear layer, the second part *second if there are
 * two, and the rows. Returns false if the node is not a linear layer. */
static bool find_weight(const Graph *graph, const Node *node, TensorId *weight, TensorId *second, int64_t *rows) {
    *second = TENSOR_NONE;
    *rows = UNIT; /* an expert may have any number of rows */
    switch (node->op) {
    case OP_linear:
        *weight = node->in[LINEAR_W];
        *second = node->in[LINEAR_W + 1];
        *rows = graph_rows(graph, node->in[LINEAR_X]);
        return !node->backward;
    case OP_adapted_linear:
        *weight = node->in[ADAPTED_LINEAR_W];
        *rows = graph_rows(graph, node->in[ADAPTED_LINEAR_X]);
        return !node->backward;
    case OP_grouped_linear: *weight = node->in[GROUPED_LINEAR_W]; return !node->backward;
    case OP_fp8_linear: *weight = fp8_linear_weight(graph, node); return !node->backward;
    case OP_linear_cross_entropy:
    case OP_fp8_linear_cross_entropy:
        *weight = loss_weight(graph, node);
        *rows = graph_rows(graph, node->in[LOSS_X]);
        return !node->backward;
    }
    return false;
}

static bool describe_layer(const Graph *graph, const ModelConfig *config, const Node *node, Fp8Layer *layer) {
    TensorId weight, second;
    *layer = (Fp8Layer){.experts = 1};
    if (!find_weight(graph, node, &weight, &second, &layer->rows)) return false;
    if (!graph_is_parameter(graph, weight)) return false; /* dequantized matrices have no recipe */
    const Tensor *w = graph_get(graph, weight);
    bool in_fp8 = node->op == OP_fp8_linear || node->op == OP_fp8_linear_cross_entropy;
    bool head = layer->head = node->op == OP_linear_cross_entropy || node->op == OP_fp8_linear_cross_entropy;
    name_layer(graph, weight, layer->name);
    if (second) name_layer(graph, second, layer->name);
    if (head && strcmp(layer->name, "lm_head")) snprintf(layer->name, sizeof layer->name, "head, tied");
    if (w->rank == 3) layer->experts = w->shape[0];
    if (node->op == OP_grouped_linear) layer->expert_rows = (double)grouped_linear_node_shape(graph, node).rows / (double)layer->experts;
    layer->out = w->shape[w->rank - 2] + (second ? graph_rows(graph, second) : 0);
    layer->in = w->shape[w->rank - 1];
    layer->flops = head ? 2.0 * (double)layer->rows * (double)layer->out * (double)layer->in : op_cost(graph, node).flops;
    if (in_fp8) layer->choice = FP8_CHOSEN;
    else if (head) layer->choice = fp8_choose_head(graph, config, layer->rows);
    else if (is_by_rule(layer->name)) layer->choice = FP8_BY_RULE;
    else if (second) layer->choice = FP8_TWO_PARTS;
    else layer->choice = fp8_choose(&config->fp8, graph->training, layer->rows, layer->expert_rows, layer->out, layer->in);
    return true;
}

static bool same_kind(const Fp8Layer *a, const Fp8Layer *b) {
    return !strcmp(a->name, b->name) && a->out == b->out && a->in == b->in && a->choice == b->choice;
}

int fp8_list_layers(const Graph *graph, const ModelConfig *config, Fp8Layer layers[FP8_LAYERS]) {
    int count = 0;
    for (int i = 0; i < graph->node_count; i++) {
        Fp8Layer layer;
        int at = 0;
        if (!describe_layer(graph, config, &graph->nodes[i], &layer)) continue;
        while (at < count && !same_kind(&layers[at], &layer)) at++;
        if (at == FP8_LAYERS) continue;
        if (at == count) layers[count++] = layer;
        else layers[at].flops += layer.flops;
        layers[at].count++;
    }
    return count;
}

Fp8Use fp8_count_use(const Graph *graph, const ModelConfig *config) {
    Fp8Layer layers[FP8_LAYERS];
    Fp8Use use = {0};
    if (config->fp8.recipe == FP8_NONE) return use;
    int count = fp8_list_layers(graph, config, layers);
    for (int i = 0; i < count; i++) (layers[i].head ? use.heads : use.layers)[layers[i].choice] += layers[i].count;
    return use;
}

const char *fp8_reason(Fp8Choice choice) {
    static const char *const reasons[] = {[FP8_BY_RULE] = "a router or adapter; a head without fp8.head",
        [FP8_UNEVEN] = "rows or columns are not a multiple of 16",
        [FP8_UNEVEN_ROWS] = "the rows of a microbatch are not a multiple of 16",
        [FP8_TOO_SMALL] = "smaller than fp8.min_size: casting would cost more than FP8 saves",
        [FP8_TWO_PARTS] = "layout.tp shards its two parts differently"};
    return reasons[choice];
}

/* Lists the reasons for the choices from FP8_UNEVEN on that occurred, joined by ", or ". */
static void list_reasons(const int64_t met[FP8_CHOICES], double min_size, char *text, size_t size) {
    text[0] = '\0';
    for (Fp8Choice choice = FP8_UNEVEN; choice <= FP8_TWO_PARTS; choice++)
        if (met[choice]) snprintf(text + strlen(text), size - strlen(text), "%s%s", text[0] ? ", or " : "", fp8_reason(choice));
    if (met[FP8_TOO_SMALL]) snprintf(text + strlen(text), size - strlen(text), "; fp8.min_size is %g", min_size);
}

void fp8_warn_if_idle(const ModelConfig *config, const Fp8Use *use, const char *where) {
    char reasons[480];
    int64_t met[FP8_CHOICES];
    for (int i = 0; i < FP8_CHOICES; i++) met[i] = use->heads[i] + (use->layers[FP8_CHOSEN] ? 0 : use->layers[i]);
    if (config->fp8.recipe == FP8_NONE || use->heads[FP8_CHOSEN]) return;
    list_reasons(met, config->fp8.min_size, reasons, sizeof reasons);
    if (!use->layers[FP8_CHOSEN])
        log_warn("fp8.recipe: no linear layer is computed in fp8%s: %s", where, reasons[0] ? reasons : "the model has none");
    else if (config->fp8.head && reasons[0])
        log_warn("fp8.head: the head (its rows divided by layout.tp) is not computed in fp8%s: %s", where, reasons);
}
