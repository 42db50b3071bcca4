/* The ranks of a command that uses a model. Owns the comm, its groups and the device until inference_close. Called by
 * generate and eval. */
#include "app/inference.h"

#include "app/command.h"
#include "app/process.h"
#include "base/log.h"
#include "device/gemm.h"
#include "layout/layout.h"

bool inference_join(Inference *inference, Error *error) {
    inference->comm = comm_open(&(CommOptions){.recommend = process_recommend}, error);
    if (inference->comm && !inference_leads(inference)) log_only_errors();
    return inference->comm != NULL;
}

bool inference_leads(const Inference *inference) { return comm_rank(inference->comm) == 0; }

bool inference_open(Inference *inference, const Config *config, int device, int precision, int64_t threads, Error *error) {
    Comm *comm = inference->comm;
    process_set_threads(threads, comm_local_size(comm));
    gemm_exact(config->exact_gemm);
    inference->precision = precision_for_inference(command_precision(precision, config->precision));
    inference->device = command_open_local_device(device, inference->precision, comm, error);
    return inference->device && comm_use_device(comm, inference->device, error) && layout_open_mesh(&inference->mesh, config, comm, error);
}

void inference_close(Inference *inference, const Error *error) {
    if (error && inference->comm) comm_abort(inference->comm, error->message);
    mesh_close(&inference->mesh);
    comm_close(inference->comm);
    device_close(inference->device);
}
