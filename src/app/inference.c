/* The ranks of a command that uses a model. Owns the comm, its groups and the device until inference_close. Called by
 * generate and eval. */
#include "app/inference.h"

#include "app/command.h"
#include "app/process.h"
#include "base/log.h"
#include "device/gemm.h"
#include "layout/layout.h"
#include "model/model.h"
#include "train/session.h"

bool inference_join(Inference *inference, Error *error) {
    inference->comm = comm_open(&(CommOptions){.recommend = process_recommend}, error);
    if (inference->comm && !inference_leads(inference)) log_only_errors();
    return inference->comm != NULL;
}

bool inference_leads(const Inference *inference) { return comm_rank(inference->comm) == 0; }

void inference_choose_fp8(Config *config, int choice) {
    if (choice <= FP8_BLOCK) config->model.fp8.recipe = choice;
}

void inference_check_fp8(const Inference *inference, const Config *config, const Graph *graph) {
    if (!fp8_is_idle(&config->model, graph) || !inference_leads(inference)) return;
    log_warn(
        "fp8.recipe: no linear layer is computed in fp8: all are below fp8.min_size=%g, which is that of the model's run, or have rows or "
        "columns that are no multiple of 16",
        config->model.fp8.min_size);
}

bool inference_open(Inference *inference, const Config *config, int device, int precision, int64_t threads, Error *error) {
    Comm *comm = inference->comm;
    process_set_threads(threads, comm_local_size(comm));
    gemm_exact(config->exact_gemm);
    inference->precision = precision_for_inference(command_precision(precision, config->precision));
    if (config->model.fp8.recipe != FP8_NONE && inference->precision == PRECISION_FP64)
        return error_set(error, ERROR_USAGE, "fp8.recipe: GEMMs of fp8 add up in fp32, which precision=fp64 cannot use");
    inference->device = command_open_local_device(device, inference->precision, comm, error);
    return inference->device && session_check_fp8(config, inference->device, error) && comm_use_device(comm, inference->device, error) &&
           layout_open_mesh(&inference->mesh, config, comm, error);
}

void inference_close(Inference *inference, const Error *error) {
    if (error && inference->comm) comm_abort(inference->comm, error->message);
    mesh_close(&inference->mesh);
    comm_close(inference->comm);
    device_close(inference->device);
}
