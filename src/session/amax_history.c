/* Rings in host memory, one per operand, and their largest values, which are updated step by step.
 * Amax values are compared as bits, which have the order of the numbers, with NaN above all. */
#include "session/amax_history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "ops/fp8/fp8.h"

typedef struct HistoryEntry {
    char *name;
    Fp8Operand operand;
    int64_t matrices;    /* 1, or one per expert of the model */
    int64_t first, held; /* the ones that this rank casts */
    int64_t at;          /* index among the amax values of all entries */
} HistoryEntry;

struct AmaxHistory {
    const Graph *graph;
    int64_t length, count; /* amax values of all entries */
    HistoryEntry *entries;
    int entry_count;
    float *rings;  /* [count, length]: step s is at s % length; 0: none */
    float *maxima; /* [count]: maxima of the rings */
    float *seen;   /* [count]: of the present step, over all ranks */
};

static const char *const roles[FP8_ROLES] = {[FP8_ROLE_X] = "x", [FP8_ROLE_W] = "w", [FP8_ROLE_D_Y] = "d_y"};

/* -- Operands ------------------------------------------------------------------------------------------------------ */

/* A weight has the name of the first parameter that it is a view of. Experts are whole on ranks, or
 * cut along the first dimension. */
static HistoryEntry operand_entry(const Graph *graph, const Fp8Operand *operand) {
    const Parameter *p = &graph->parameters[graph_find_parameter(graph, graph_get(graph, operand->weight)->name)];
    int64_t held = graph_elements(graph, operand->amax);
    bool experts = operand->role == FP8_ROLE_W && p->rank == 3;
    HistoryEntry entry = {.operand = *operand, .matrices = experts ? p->whole[0] : held, .held = held};
    if (entry.matrices > held)
        entry.first = cut_share(entry.matrices, mesh_index(graph->mesh, p->cut.axes), mesh_size(graph->mesh, p->cut.axes)).first;
    entry.name = memory_format("amax_history/%s/%s", roles[operand->role], p->name);
    return entry;
}

/* Returns the operands whose casts compute the next amax, for the caller to free. The amax of other
 * operands has other sources. */
static Fp8Operand *list_operands(const Graph *graph, int *count) {
    int all = fp8_operands(graph, NULL);
    Fp8Operand *operands = memory_allocate((size_t)(all + 1) * sizeof *operands);
    fp8_operands(graph, operands);
    *count = 0;
    for (int i = 0; i < all; i++)
        if (operands[i].seen) operands[(*count)++] = operands[i];
    return operands;
}

AmaxHistory *amax_history_create(const Graph *graph, int64_t length) {
    int count;
    SCOPED_FREE Fp8Operand *operands = list_operands(graph, &count);
    if (!count) return NULL;
    AmaxHistory *history = memory_allocate(sizeof *history);
    *history = (AmaxHistory){.graph = graph, .length = length, .entries = memory_allocate((size_t)count * sizeof *history->entries)};
    for (int i = 0; i < count; i++) {
        HistoryEntry *entry = &history->entries[history->entry_count++];
        *entry = operand_entry(graph, &operands[i]);
        entry->at = history->count;
        history->count += entry->matrices;
    }
    size_t row = (size_t)history->count * sizeof(float);
    history->rings = memory_allocate(row * (size_t)length);
    history->maxima = memory_allocate(row);
    history->seen = memory_allocate(row);
    return history;
}

void amax_history_free(AmaxHistory *history) {
    if (!history) return;
    for (int i = 0; i < history->entry_count; i++) free(history->entries[i].name);
    free(history->entries);
    free(history->rings);
    free(history->maxima);
    free(history->seen);
    free(history);
}

int64_t amax_history_bytes(const Graph *graph, int64_t length) {
    AmaxHistory *history = amax_history_create(graph, 1);
    int64_t bytes = history ? history->count * (length + 2) * (int64_t)sizeof(float) : 0;
    amax_history_free(history);
    return bytes;
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

void amax_history_put(const AmaxHistory *history, Executor *executor, double target) {
    bool fnuz = device_info(executor_backend(executor)->device)->fp8_fnuz;
    for (int i = 0; history && i < history->entry_count; i++) {
        const HistoryEntry *entry = &history->entries[i];
        float *amax = executor_tensor(executor, entry->operand.amax), first = fp8_largest(entry->operand.kind, fnuz);
        if (entry->operand.role == FP8_ROLE_D_Y) first *= (float)target;
        for (int64_t j = 0; j < entry->held; j++) {
            float amax_j = history->maxima[entry->at + entry->first + j];
            amax[j] = amax_j > 0 ? amax_j : first;
        }
    }
}

bool amax_history_agree(AmaxHistory *history, const Executor *executor, Error *error) {
    if (!history) return true;
    SCOPED_FREE int64_t *bits = memory_allocate((size_t)history->count * sizeof *bits);
    for (int64_t i = 0; i < history->count; i++) bits[i] = 0;
    for (int i = 0; i < history->entry_count; i++) {
        const HistoryEntry *entry = &history->entries[i];
        const float *seen = executor_tensor(executor, entry->operand.seen);
        for (int64_t j = 0; j < entry->held; j++) bits[entry->at + entry->first + j] = float_to_bits(seen[j]);
    }
    Comm *group = mesh_group(history->graph->mesh, AXES_ALL & ~MESH(AXIS_PP));
    if (!comm_host_all_reduce(group, "amax", bits, history->count, COMM_I64, COMM_MAX, error)) return false;
    for (int64_t i = 0; i < history->count; i++) history->seen[i] = float_from_bits((uint32_t)bits[i]);
    return true;
}

bool amax_history_is_finite(const AmaxHistory *history) {
    bool finite = true;
    for (int64_t i = 0; history && i < history->count; i++) finite &= (bool)isfinite(history->seen[i]);
    return finite;
}

static float history_amax(const float *values, int64_t count) {
    float most = 0;
    for (int64_t i = 0; i < count; i++) most = values[i] > most ? values[i] : most;
    return most;
}

void amax_history_note(AmaxHistory *history, int64_t step, bool updated) {
    for (int64_t i = 0; history && i < history->count; i++) {
        float *ring = history->rings + i * history->length, *place = &ring[step % history->length], oldest = *place;
        *place = updated ? history->seen[i] : 0;
        if (*place >= history->maxima[i]) history->maxima[i] = *place;
        else if (oldest == history->maxima[i]) history->maxima[i] = history_amax(ring, history->length);
    }
}

/* -- Checkpoints --------------------------------------------------------------------------------------------------- */

int amax_history_tensors(const AmaxHistory *history) { return history ? history->entry_count : 0; }

AmaxTensor amax_history_tensor(const AmaxHistory *history, int index) {
    const HistoryEntry *entry = &history->entries[index];
    return (AmaxTensor){entry->name, entry->matrices, history->length, history->rings + entry->at * history->length};
}

void amax_history_take(AmaxHistory *history, int index, const float *values, int64_t length, int64_t step) {
    AmaxTensor to = amax_history_tensor(history, index);
    int64_t at = history->entries[index].at;
    memset(to.values, 0, (size_t)(to.matrices * to.length) * sizeof *to.values);
    for (int64_t i = 0; i < to.matrices; i++) {
        for (int64_t s = int_max(0, step - int_min(length, to.length) + 1); s <= step; s++)
            to.values[i * to.length + s % to.length] = values[i * length + s % length];
        history->maxima[at + i] = history_amax(to.values + i * to.length, to.length);
    }
}
