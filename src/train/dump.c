/* Dumps of a step: inputs, logits, loss, weights and every gradient as safetensors files, for
 * comparison with other programs. All of them come from the run of the training program that
 * computed the loss. Owns nothing. Called by the training loop. */
#include "train/dump_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "ckpt/ckpt.h"
#include "formats/hf.h"

static bool write_dump_file(const char *folder, const char *name, const StoredTensor *tensors, size_t count, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    return safetensors_write(path, tensors, count, NULL, error);
}

/* Returns the matrix in the model folder's layout, or a vector times `unit`; *copy is set, to be
 * freed, if that needs other memory. */
static StoredTensor parameter_tensor(const Parameter *p, const char *arena, double unit, char **copy) {
    StoredTensor tensor = {.name = p->name, .type = session_stored_type(p), .rank = p->rank, .data = parameter_in(p, arena)};
    memcpy(tensor.shape, p->shape, sizeof p->shape);
    if (unit != 1 || hf_reorders(p)) *copy = memory_allocate(p->count * p->element_bytes);
    if (unit != 1) {
        for (int64_t i = 0; i < p->count; i++)
            element_set(p->element_bytes, *copy, i, unit * element_get(p->element_bytes, tensor.data, i));
        tensor.data = *copy;
    }
    if (!hf_reorders(p)) return tensor;
    hf_reorder(p, tensor.data, *copy, p->element_bytes);
    tensor.data = *copy;
    if (!p->transposed) return tensor;
    tensor.shape[p->rank - 2] = p->shape[p->rank - 1];
    tensor.shape[p->rank - 1] = p->shape[p->rank - 2];
    return tensor;
}

/* Returns the value of 1 in an arena: gradients of load-balancing biases count in integers
 * (ops/router/rule.c). */
static double gradient_unit(const Session *session, const Parameter *p, Arena which) {
    return which == ARENA_GRADIENT && p->kind == PARAMETER_BALANCE_BIAS ? session->update.load_unit : 1;
}

/* Writes the parameters' intervals of an arena under the parameters' names. */
static bool write_arena(const Session *session, const char *folder, const char *name, Arena which, Error *error) {
    const Graph *graph = session->training.model.graph;
    Device *device = session->device;
    void *memory = executor_arena(session->training.executor, which);
    char *arena = device_view(device, memory, session->training.plan.bytes[which], VIEW_READ, error);
    if (!arena) return false;
    SCOPED_FREE StoredTensor *tensors = memory_allocate(graph->parameter_count * sizeof *tensors);
    SCOPED_FREE char **copies = memory_allocate(graph->parameter_count * sizeof *copies);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        tensors[i] = parameter_tensor(p, arena, gradient_unit(session, p, which), &copies[i]);
    }
    bool written = write_dump_file(folder, name, tensors, graph->parameter_count, error);
    for (int i = 0; i < graph->parameter_count; i++) free(copies[i]);
    device_view_close(device, arena, memory, session->training.plan.bytes[which], VIEW_READ);
    return written;
}

static bool write_step(const Session *session, const char *folder, const StepInputs *inputs, const char *logits, Error *error) {
    const Config *config = session->config;
    StoredType wide = config->precision == PRECISION_FP64 ? STORED_F64 : STORED_F32;
    StoredTensor tensors[] = {
        {.name = "tokens", .type = STORED_I32, .rank = 1, .shape = {inputs->rows}, .data = inputs->tokens},
        {.name = "targets", .type = STORED_I32, .rank = 1, .shape = {inputs->rows}, .data = inputs->targets},
        {.name = "positions", .type = STORED_I32, .rank = 1, .shape = {inputs->rows}, .data = inputs->positions},
        {.name = "loss",
            .type = wide,
            .rank = 1,
            .shape = {1},
            .data = executor_tensor(session->training.executor, session->training.model.loss)},
        {.name = "logits", .type = wide, .rank = 2, .shape = {inputs->rows, config->model.vocabulary}, .data = logits},
    };
    return write_dump_file(folder, "step.safetensors", tensors, sizeof tensors / sizeof *tensors, error);
}

bool dump_step(const Session *session, const char *folder, const StepInputs *inputs, const char *logits, Error *error) {
    return file_make_folder(folder, error) && write_step(session, folder, inputs, logits, error) &&
           write_arena(session, folder, "weights.safetensors", ARENA_MASTER, error) &&
           write_arena(session, folder, "gradients.safetensors", ARENA_GRADIENT, error);
}
