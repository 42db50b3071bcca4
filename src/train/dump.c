/* Dumps of a step: inputs, logits, loss, weights and every gradient as safetensors files, for comparison with other
 * programs. The logits of all rows come from a separate program, which shares the session's weights. Owns that
 * program while it runs. Called by the training loop and the check of debug states. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "ckpt/ckpt.h"
#include "model/hf.h"
#include "train/train.h"

static bool write_file(const char *folder, const char *name, const StoredTensor *tensors, size_t count, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    return safetensors_write(path, tensors, count, NULL, error);
}

/* The matrix as the model's folder holds it; *copy, to be freed, is set when that is another order. */
static StoredTensor parameter_tensor(const Parameter *p, const char *arena, char **copy) {
    StoredTensor tensor = {.name = p->name, .type = session_stored_type(p), .rank = p->rank, .data = parameter_in(p, arena)};
    memcpy(tensor.shape, p->shape, sizeof p->shape);
    if (p->transposed) {
        *copy = memory_allocate(p->count * p->element_bytes);
        hf_transpose(tensor.data, *copy, p->shape[0], p->shape[1], p->element_bytes);
        tensor.shape[0] = p->shape[1];
        tensor.shape[1] = p->shape[0];
        tensor.data = *copy;
    }
    return tensor;
}

/* The parameters' intervals of an arena under the parameters' names. */
static bool write_arena(const Session *session, const char *folder, const char *name, Arena which, Error *error) {
    const Graph *graph = session->model.graph;
    Device *device = session->backend.device;
    void *memory = executor_arena(session->executor, which);
    char *arena = device_view(device, memory, session->plan.bytes[which], VIEW_READ, error);
    if (!arena) return false;
    SCOPED_FREE StoredTensor *tensors = memory_allocate(graph->parameter_count * sizeof *tensors);
    SCOPED_FREE char **copies = memory_allocate(graph->parameter_count * sizeof *copies);
    for (int i = 0; i < graph->parameter_count; i++) tensors[i] = parameter_tensor(&graph->parameters[i], arena, &copies[i]);
    bool written = write_file(folder, name, tensors, graph->parameter_count, error);
    for (int i = 0; i < graph->parameter_count; i++) free(copies[i]);
    device_view_close(device, arena, memory, session->plan.bytes[which], VIEW_READ);
    return written;
}

/* Fills `logits` [rows of the step, vocabulary] microbatch by microbatch. */
static void run_logits(const Model *model, Executor *executor, const StepInputs *inputs, char *logits) {
    const Graph *graph = model->graph;
    int64_t rows = model->sequences * model->length;
    size_t bytes = graph_elements(graph, model->logits) * precision_bytes(graph->precision, TYPE_WIDE);
    for (int64_t at = 0; at < inputs->rows; at += rows, logits += bytes) {
        memcpy(executor_tensor(executor, model->tokens), inputs->tokens + at, rows * sizeof(int32_t));
        memcpy(executor_tensor(executor, model->positions), inputs->positions + at, rows * sizeof(int32_t));
        executor_run(executor);
        executor_read(executor, model->logits, logits);
    }
}

bool compute_logits(const Session *session, const StepInputs *inputs, char *logits, Error *error) {
    const Config *config = session->config;
    SCOPED(model_free)
    Model model =
        model_build(&config->model, config->precision, MODEL_LOGITS, config->batch.sequences, config->data.length, RECOMPUTE_NONE);
    layout_place(session->layout, model.graph);
    Plan plan = graph_plan(model.graph, &session->backend);
    void *shared[ARENA_COUNT] = {
        [ARENA_WEIGHT] = executor_arena(session->executor, ARENA_WEIGHT),
        [ARENA_MASTER] = executor_arena(session->executor, ARENA_MASTER),
    };
    Executor *executor = executor_create(model.graph, &plan, &session->backend, shared, error);
    if (!executor) return false;
    run_logits(&model, executor, inputs, logits);
    executor_free(executor);
    return true;
}

static bool write_step(const Session *session, const char *folder, const StepInputs *inputs, Error *error) {
    const Config *config = session->config;
    StoredType wide = config->precision == PRECISION_FP64 ? STORED_F64 : STORED_F32;
    int64_t vocabulary = config->model.vocabulary;
    size_t bytes = inputs->rows * vocabulary * precision_bytes(config->precision, TYPE_WIDE);
    char *logits = memory_map(bytes, error);
    if (!logits) return error_context(error, "the logits of a step");
    StoredTensor tensors[] = {
        {.name = "tokens", .type = STORED_I32, .rank = 1, .shape = {inputs->rows}, .data = inputs->tokens},
        {.name = "targets", .type = STORED_I32, .rank = 1, .shape = {inputs->rows}, .data = inputs->targets},
        {.name = "positions", .type = STORED_I32, .rank = 1, .shape = {inputs->rows}, .data = inputs->positions},
        {.name = "loss", .type = wide, .rank = 1, .shape = {1}, .data = executor_tensor(session->executor, session->model.loss)},
        {.name = "logits", .type = wide, .rank = 2, .shape = {inputs->rows, vocabulary}, .data = logits},
    };
    bool written = compute_logits(session, inputs, logits, error) &&
                   write_file(folder, "step.safetensors", tensors, sizeof tensors / sizeof *tensors, error);
    memory_unmap(logits, bytes);
    return written;
}

bool dump_step(const Session *session, const char *folder, const StepInputs *inputs, Error *error) {
    return file_make_folder(folder, error) && write_step(session, folder, inputs, error) &&
           write_arena(session, folder, "weights.safetensors", ARENA_MASTER, error) &&
           write_arena(session, folder, "gradients.safetensors", ARENA_GRADIENT, error);
}
