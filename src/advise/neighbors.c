/* Finds better neighbors. Every dimension is moved to good values near it. Then the width of the
 * MLP or of the experts is solved for, because the number of parameters is linear in it. Owns
 * nothing. */
#include <math.h>
#include <string.h>

#include "advise/size.h"
#include "base/math.h"

static const double tolerance = 0.01; /* fraction of the number of parameters */

static int64_t round_near(double value, int64_t to) { return int_max((int64_t)llround(value / (double)to), 1) * to; }

static int count_changes(const ModelConfig *a, const ModelConfig *b) {
    return (a->layers != b->layers) + (a->width != b->width) +
           (a->head_dim != b->head_dim || a->heads != b->heads || a->kv_heads != b->kv_heads) + (a->ffn != b->ffn) +
           (a->vocabulary != b->vocabulary) + (a->experts != b->experts) + (a->router_width != b->router_width);
}

static bool saves_more(const Neighbor *a, const Neighbor *b) {
    double x = a->estimate.seconds, y = b->estimate.seconds;
    return fabs(x / y - 1) < 1e-3 ? a->changes < b->changes : x < y;
}

/* Keeps the best neighbors in order. Drops one that is as fast as another with no more changes. */
static void insert(Neighbor *list, int *count, const Neighbor *item) {
    for (int i = 0; i < *count; i++)
        if (fabs(list[i].estimate.seconds / item->estimate.seconds - 1) < 1e-3 && list[i].changes <= item->changes) return;
    int at = *count;
    while (at > 0 && saves_more(item, &list[at - 1])) at--;
    if (at == SIZE_NEIGHBORS) return;
    if (*count < SIZE_NEIGHBORS) ++*count;
    memmove(&list[at + 1], &list[at], (size_t)(*count - 1 - at) * sizeof *list);
    list[at] = *item;
}

/* Returns whether the rest of the configuration allows the model and no rule finds a fault. */
static bool is_usable(const SizeQuestion *question, ModelConfig *model) {
    Config config = *question->config;
    Error ignored = {0};
    Sizing sizing;
    config.model = *model;
    if (!config_check(&config, &ignored)) return false;
    SizeQuestion other = *question;
    other.config = &config;
    size_check(&sizing, &other);
    return sizing.faults == 0;
}

typedef struct NeighborSearch {
    const SizeQuestion *question;
    SizeEstimate now;
    bool faulty; /* the model itself has faults: slower models without faults are then neighbors too */
    Neighbor *list;
    int count;
    Neighbor simplest; /* with the fewest changes; 0 changes: none yet */
} NeighborSearch;

/* Tries widths of the MLP around the one that preserves the number of parameters. */
static void try_widths(NeighborSearch *search, ModelConfig model) {
    static const int64_t units[] = {256, 128, 64};
    const SizeQuestion *question = search->question;
    model.ffn = 1024;
    double small = size_estimate(question, &model).parameters;
    model.ffn = 2048;
    double slope = (size_estimate(question, &model).parameters - small) / 1024, wanted = 1024 + (search->now.parameters - small) / slope;
    if (!(wanted >= 64) || wanted > 1 << 24) return;
    for (int i = 0; i < 3; i++) {
        Neighbor neighbor = {.model = model};
        neighbor.model.ffn = round_near(wanted, units[i]);
        if (fabs((neighbor.model.ffn - wanted) * slope / search->now.parameters) > tolerance) continue;
        neighbor.estimate = size_estimate(question, &neighbor.model);
        neighbor.changes = count_changes(&neighbor.model, &question->config->model);
        bool full = search->count == SIZE_NEIGHBORS, quick = !full || saves_more(&neighbor, &search->list[SIZE_NEIGHBORS - 1]);
        bool simple = search->simplest.changes == 0 || neighbor.changes < search->simplest.changes;
        if (neighbor.changes == 0 || (!search->faulty && neighbor.estimate.seconds >= search->now.seconds) || (!quick && !simple) ||
            !is_usable(question, &neighbor.model))
            continue;
        if (simple) search->simplest = neighbor;
        insert(search->list, &search->count, &neighbor);
    }
}

int size_neighbors(const SizeQuestion *question, Neighbor neighbors[SIZE_NEIGHBORS]) {
    const ModelConfig *from = &question->config->model;
    Sizing sizing;
    size_check(&sizing, question);
    NeighborSearch search = {.question = question, .now = size_estimate(question, from), .faulty = sizing.faults > 0, .list = neighbors};
    const int64_t unit = 128, shards = 64 * question->tensor,
                  widths[] = {round_near((double)from->width, unit), round_near((double)from->width, 256),
                      round_near(from->width * 0.94, 256), round_near(from->width * 1.06, 256)};
    const int64_t heads[] = {from->head_dim, question->hardware.head_dim, 128},
                  experts[] = {from->experts, round_near((double)from->experts, 8), from->experts / 8 * 8};
    bool whole_width = from->heads * from->head_dim == from->width;
    for (int e = 0; e < (from->experts ? 3 : 1); e++)
        for (int h = 0; h < 3; h++)
            for (int w = 0; w < 4; w++)
                for (int64_t layers = int_max(from->layers - 2, from->single_layers + 1); layers <= from->layers + 2; layers++) {
                    ModelConfig model = *from;
                    bool again = (e > 0 && experts[e] == experts[e - 1]) || (h > 0 && heads[h] == heads[h - 1]) ||
                                 (w > 0 && widths[w] == widths[w - 1]);
                    if (again || (from->experts && experts[e] < from->experts_per_token) || experts[e] > 511) continue;
                    if (experts[e] % from->expert_groups) continue;
                    model.layers = layers;
                    model.experts = experts[e];
                    model.width = widths[w];
                    model.vocabulary = round_up(from->vocabulary, shards);
                    model.router_width = round_near((double)from->router_width, 64);
                    size_set_heads(&model, heads[h], whole_width ? model.width : from->heads * from->head_dim);
                    try_widths(&search, model);
                }
    bool listed = search.simplest.changes == 0;
    for (int i = 0; i < search.count; i++) listed |= neighbors[i].changes <= search.simplest.changes;
    if (!listed) neighbors[search.count == SIZE_NEIGHBORS ? SIZE_NEIGHBORS - 1 : search.count++] = search.simplest;
    return search.count;
}
