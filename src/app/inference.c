/* The ranks of a command that uses a model. Owns the comm, its groups and the device until
 * inference_close. Called by generate, chat and eval. */
#include "app/inference.h"

#include "app/command.h"
#include "app/process.h"
#include "base/log.h"
#include "config/needs.h"
#include "device/gemm.h"
#include "layout/layout.h"
#include "model/model.h"
#include "session/session.h"

bool inference_join(Inference *inference, Error *error) {
    inference->comm = comm_open(&(CommOptions){.recommend = process_recommend}, error);
    if (inference->comm && !inference_leads(inference)) log_only_errors();
    return inference->comm != NULL;
}

bool inference_leads(const Inference *inference) { return comm_rank(inference->comm) == 0; }

bool inference_check_text(const Config *config, Error *error) {
    return !model_makes_images(&config->model) ||
           error_set(error, ERROR_USAGE, "model.family=flux makes images, but this command needs a text model");
}

bool inference_choose_arithmetic(Config *config, const Fp8Config *given, bool exact, Error *error) {
    Fp8Config *fp8 = &config->model.fp8;
    config->exact = exact;
    bool same = given->recipe > FP8_MXFP8;
    if (!same) fp8->recipe = given->recipe, fp8->head = false;
    fp8->uneven_rows = same && config_has_uneven_rows(config);
    if (given->min_size >= 0) fp8->min_size = given->min_size;
    return given->min_size < 0 || fp8->recipe != FP8_NONE ||
           error_set(error, ERROR_USAGE, "fp8.min_size=%g needs a recipe: set fp8.recipe=row or another recipe", given->min_size);
}

void inference_check_fp8(const Inference *inference, const Config *config, const Graph *graph) {
    Fp8Use use = fp8_count_use(graph, &config->model);
    if (inference_leads(inference)) fp8_warn_if_idle(&config->model, &use, "");
}

/* Refuses exact=true for what a device cannot compute exactly. */
static bool check_exact(const Config *config, Error *error) {
    Config said;
    OptionStrings strings = {0};
    options_defaults(&config_table, &said, &strings);
    said.exact = config->exact;
    bool possible = needs_check(config, &said, error);
    options_free_strings(&strings);
    if (possible && config->exact && config->lora.rank)
        return error_set(error, ERROR_USAGE,
            "exact=true with lora.rank=%lld: this command adds the adapters to the weights, and training multiplies by them separately, "
            "so the bits would differ. Set exact=false, or write a model with smelt convert and compare training of that model",
            (long long)config->lora.rank);
    return possible;
}

bool inference_open(Inference *inference, const Config *config, int device, int precision, int64_t threads, Error *error) {
    Comm *comm = inference->comm;
    if ((!inference->images && !inference_check_text(config, error)) || !check_exact(config, error)) return false;
    process_set_threads(threads, comm_local_size(comm));
    gemm_exact(config->exact_gemm);
    inference->precision = precision_for_inference(command_precision(precision, config->precision));
    if (config->model.fp8.recipe != FP8_NONE && inference->precision == PRECISION_FP64)
        return error_set(error, ERROR_USAGE, "fp8.recipe with precision=fp64: fp8 GEMMs accumulate in fp32: use another precision");
    inference->device = command_open_local_device(device, inference->precision, comm, error);
    if (inference->device) device_set_exact(inference->device, config->exact);
    return inference->device && session_check_fp8(config, inference->device, error) && comm_use_device(comm, inference->device, error) &&
           layout_open_mesh(&inference->mesh, config, comm, error);
}

void inference_close(Inference *inference, const Error *error) {
    if (error && inference->comm) comm_abort(inference->comm, error->message);
    mesh_close(&inference->mesh);
    comm_close(inference->comm);
    device_close(inference->device);
}
