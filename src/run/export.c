/* Prints the numbers of runs from their states. Owns nothing. Called by `smelt watch` and by exporter.c. */
#include "run/export.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/scope.h"

/* A metric: a number, or a list with a number per GPU, from the newest record of a kind, times `factor`. If `field` is NULL,
 * `of_state` computes it from the state. */
typedef struct ExportName {
    const char *name, *help;
    bool counter, of_rank; /* of_rank: it is rank 0's alone */
    RunRecord record;
    const char *field;
    double factor;
    double (*of_state)(const RunState *state);
} ExportName;

static double as_number(const json_t *value) { return json_is_number(value) ? json_number_value(value) : NAN; }

static double step_of(const RunState *state) { return (double)state->step; }
static double steps_of(const RunState *state) { return state->steps ? (double)state->steps : NAN; }
static double sign_of(const RunState *state) { return state->sign; }
static double left_of(const RunState *state) { return state->seconds_left; }

#define OF_STATE(function) .of_state = function
#define OF_STEP(name, by) .record = RUN_RECORD_STEP, .field = name, .factor = by
#define OF_EVALUATION(name, by) .record = RUN_RECORD_EVALUATION, .field = name, .factor = by
#define OF_MACHINE(name, by) .of_rank = true, .record = RUN_RECORD_SYSTEM, .field = name, .factor = by
#define OF_CHECKPOINT(name, by) .record = RUN_RECORD_CHECKPOINT, .field = name, .factor = by

static const ExportName names[] = {
    {"smelt_run_step", "Steps done.", OF_STATE(step_of)},
    {"smelt_run_planned_steps", "Steps of the whole run.", OF_STATE(steps_of)},
    {"smelt_run_last_sign_timestamp_seconds", "Time of the newest sign of life.", OF_STATE(sign_of)},
    {"smelt_run_remaining_seconds", "Estimated time to the last step, of a run that trains.", OF_STATE(left_of)},
    {"smelt_run_last_step_timestamp_seconds", "Time at which the newest step ended.", OF_STEP("time", 1)},
    {"smelt_run_step_duration_seconds", "Time of the newest step.", OF_STEP("milliseconds", 1e-3)},
    {"smelt_run_loss", "Training loss of the newest step.", OF_STEP("loss", 1)},
    {"smelt_run_auxiliary_loss", "Load-balancing loss of the newest step.", OF_STEP("auxiliary", 1)},
    {"smelt_run_gradient_norm", "Norm of the gradient before clipping.", OF_STEP("grad_norm", 1)},
    {"smelt_run_learning_rate", "Learning rate of the newest step.", OF_STEP("lr", 1)},
    {"smelt_run_tokens_total", "Tokens trained so far.", .counter = true, OF_STEP("tokens_seen", 1)},
    {"smelt_run_tokens_per_second", "Tokens per second of all ranks.", OF_STEP("tokens_per_second", 1)},
    {"smelt_run_images_per_second", "Images per second of all ranks.", OF_STEP("images_per_second", 1)},
    {"smelt_run_flops_per_second", "Floating-point operations per second of all ranks.", OF_STEP("tflops", 1e12)},
    {"smelt_run_peak_flops_ratio", "Operations per second over the vendor's peak.", OF_STEP("peak_percent", 1e-2)},
    {"smelt_run_best_flops_ratio", "Operations per second over the best measured here.", OF_STEP("best_percent", 1e-2)},
    {"smelt_run_memory_bytes", "Memory in use by a rank.", .of_rank = true, OF_STEP("memory_bytes", 1)},
    {"smelt_run_collective_wait_seconds", "Time that a rank waited for collectives in the newest step.", .of_rank = true,
        OF_STEP("waiting_milliseconds", 1e-3)},
    {"smelt_run_reward_chosen", "Mean reward of chosen answers.", OF_STEP("reward_chosen", 1)},
    {"smelt_run_reward_rejected", "Mean reward of rejected answers.", OF_STEP("reward_rejected", 1)},
    {"smelt_run_reward_margin", "Mean reward of chosen minus rejected answers.", OF_STEP("reward_margin", 1)},
    {"smelt_run_reward_accuracy_ratio", "Share of pairs whose chosen answer has the larger reward.", OF_STEP("reward_accuracy", 1)},
    {"smelt_run_reward", "Mean reward of the samples of the newest step.", OF_STEP("reward", 1)},
    {"smelt_run_sample_length_tokens", "Mean length of the samples of the newest step.", OF_STEP("sample_length", 1)},
    {"smelt_run_entropy_nats", "Mean of -log p of the drawn tokens.", OF_STEP("entropy", 1)},
    {"smelt_run_mismatch_kl_nats", "Divergence of generation from training.", OF_STEP("mismatch_kl", 1)},
    {"smelt_run_validation_loss", "Loss of the newest evaluation.", OF_EVALUATION("loss", 1)},
    {"smelt_run_validation_compression_ratio", "Bits per byte of the newest evaluation, over 8.", OF_EVALUATION("bits_per_byte", 0.125)},
    {"smelt_run_validation_step", "Step of the newest evaluation.", OF_EVALUATION("step", 1)},
    {"smelt_run_checkpoint_step", "Step of the newest checkpoint.", OF_CHECKPOINT("step", 1)},
    {"smelt_run_checkpoint_timestamp_seconds", "Time at which the newest checkpoint was complete.", OF_CHECKPOINT("time", 1)},
    {"smelt_run_checkpoint_size_bytes", "Size of the newest checkpoint.", OF_CHECKPOINT("bytes", 1)},
    {"smelt_run_checkpoint_duration_seconds", "Time to write the newest checkpoint.", OF_CHECKPOINT("milliseconds", 1e-3)},
    {"smelt_run_cpu_ratio", "Busy share of the processors of a rank's machine.", OF_MACHINE("cpu_percent", 1e-2)},
    {"smelt_run_machine_memory_bytes", "Memory in use on a rank's machine.", OF_MACHINE("machine_memory_bytes", 1)},
    {"smelt_run_disk_read_bytes_per_second", "Bytes read from disks per second.", OF_MACHINE("disk_read_bytes_per_second", 1)},
    {"smelt_run_disk_written_bytes_per_second", "Bytes written to disks per second.", OF_MACHINE("disk_written_bytes_per_second", 1)},
    {"smelt_run_network_received_bytes_per_second", "Bytes received from networks per second.",
        OF_MACHINE("network_received_bytes_per_second", 1)},
    {"smelt_run_network_sent_bytes_per_second", "Bytes sent to networks per second.", OF_MACHINE("network_sent_bytes_per_second", 1)},
    {"smelt_run_gpu_ratio", "Share of the time in which a GPU ran kernels.", OF_MACHINE("gpu_percent", 1e-2)},
    {"smelt_run_gpu_memory_bytes", "Memory in use on a GPU.", OF_MACHINE("gpu_memory_bytes", 1)},
    {"smelt_run_gpu_power_watts", "Power of a GPU.", OF_MACHINE("gpu_watts", 1)},
    {"smelt_run_gpu_temperature_celsius", "Temperature of a GPU.", OF_MACHINE("gpu_celsius", 1)},
};
enum { NAMES = sizeof names / sizeof *names };
static const char state_name[] = "smelt_run_state", state_help[] = "1 for the state in which the run is, else 0.";

static const json_t *field_of(const ExportName *name, const RunState *state) {
    return name->of_state ? NULL : json_object_get(state->records[name->record], name->field);
}

/* Returns the number of GPU `gpu` if the field is a list. Otherwise `gpu` must be 0. */
static double value_of(const ExportName *name, const RunState *state, size_t gpu) {
    const json_t *field = field_of(name, state);
    if (name->of_state) return name->of_state(state);
    return name->factor * as_number(json_is_array(field) ? json_array_get(field, gpu) : field);
}

/* Returns the number of GPUs in a list. Returns 0 if the field is not a list but a single number. */
static size_t gpus_of(const ExportName *name, const RunState *state) {
    const json_t *field = field_of(name, state);
    return json_is_array(field) ? json_array_size(field) : 0;
}

bool export_is_healthy(const RunState *state) {
    return state->status != RUN_IS_SILENT && state->status != RUN_IS_FAILED && state->status != RUN_IS_STOPPED;
}

/* Returns a text as UTF-8; the caller frees. Bytes of a name that is not UTF-8 become '?'. */
static char *as_utf8(const char *text) {
    char *copy = memory_copy_string(text);
    json_auto_t *valid = json_string(text);
    for (unsigned char *c = (unsigned char *)copy; *c && !valid; c++)
        if (*c >= 0x80) *c = '?';
    return copy;
}

/* Prints integers whole, and other numbers to 15 digits, which include the milliseconds of a timestamp. */
static void print_exported(double value, char text[static 32]) {
    const double most = 9007199254740992; /* 2^53 */
    snprintf(text, 32, value == trunc(value) && fabs(value) <= most ? "%.0f" : "%.15g", value);
}

/* -- Prometheus ---------------------------------------------------------------------------------------------------- */

static void put_label(FILE *out, const char *name, const char *text) {
    SCOPED_FREE char *value = as_utf8(text);
    fprintf(out, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '\n') fputs("\\n", out);
        else if (*c == '\\' || *c == '"') fprintf(out, "\\%c", *c);
        else putc(*c, out);
    }
    putc('"', out);
}

static void put_states(FILE *out, const ExportedRun *runs, int count) {
    fprintf(out, "# HELP %s %s\n# TYPE %s gauge\n", state_name, state_help, state_name);
    for (int i = 0; i < count; i++)
        for (RunStatus status = 0; status < RUN_STATUS_COUNT; status++) {
            fprintf(out, "%s{", state_name);
            put_label(out, "run", runs[i].name);
            fprintf(out, ",state=\"%s\"} %d\n", run_status_name(status), runs[i].state->status == status);
        }
}

static void put_numbers(FILE *out, const ExportName *name, const ExportedRun *run, bool *described) {
    const size_t gpus = gpus_of(name, run->state);
    char text[32];
    for (size_t i = 0; i < (gpus ? gpus : 1); i++) {
        double value = value_of(name, run->state, i);
        if (!isfinite(value)) continue;
        if (!*described)
            fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name->name, name->help, name->name, name->counter ? "counter" : "gauge");
        *described = true;
        fprintf(out, "%s{", name->name);
        put_label(out, "run", run->name);
        if (name->of_rank) fputs(",rank=\"0\"", out);
        if (gpus) fprintf(out, ",gpu=\"%zu\"", i);
        print_exported(value, text);
        fprintf(out, "} %s\n", text);
    }
}

char *export_prometheus(const ExportedRun *runs, int count) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) memory_refused(0);
    put_states(out, runs, count);
    for (const ExportName *name = names; name < names + NAMES; name++) {
        bool described = false;
        for (int i = 0; i < count; i++) put_numbers(out, name, &runs[i], &described);
    }
    fclose(out);
    return text;
}

/* -- OTLP ---------------------------------------------------------------------------------------------------------- */

static json_t *attribute(const char *key, const char *value) {
    return json_pack("{s:s, s:{s:s}}", "key", key, "value", "stringValue", value);
}

/* Returns a metric with a point per number, or NULL without numbers. Times are strings of nanoseconds. */
static json_t *otlp_metric(const ExportName *name, const RunState *state, double now) {
    char nanoseconds[32], index[24];
    const size_t gpus = gpus_of(name, state);
    json_t *points = json_array();
    snprintf(nanoseconds, sizeof nanoseconds, "%.0f000000", now * 1e3);
    for (size_t i = 0; i < (gpus ? gpus : 1); i++) {
        double value = value_of(name, state, i);
        if (!isfinite(value)) continue;
        json_t *point = json_pack("{s:f, s:s}", "asDouble", value, "timeUnixNano", nanoseconds), *labels = json_array();
        snprintf(index, sizeof index, "%zu", i);
        if (name->of_rank) json_array_append_new(labels, attribute("rank", "0"));
        if (gpus) json_array_append_new(labels, attribute("gpu", index));
        if (json_array_size(labels)) json_object_set(point, "attributes", labels);
        json_decref(labels);
        json_array_append_new(points, point);
    }
    if (json_array_size(points) == 0) {
        json_decref(points);
        return NULL;
    }
    json_t *data = json_pack("{s:o}", "dataPoints", points),
           *metric = json_pack("{s:s, s:s}", "name", name->name, "description", name->help);
    if (name->counter)
        json_object_update_new(data, json_pack("{s:i, s:b}", "aggregationTemporality", 2 /* cumulative */, "isMonotonic", 1));
    json_object_set_new(metric, name->counter ? "sum" : "gauge", data);
    return metric;
}

char *export_otlp(const ExportedRun *run, double now) {
    SCOPED_FREE char *title = as_utf8(run->name);
    json_t *metrics = json_array();
    for (const ExportName *name = names; name < names + NAMES; name++) {
        json_t *metric = otlp_metric(name, run->state, now);
        if (metric) json_array_append_new(metrics, metric);
    }
    json_auto_t *body = json_pack("{s:[{s:{s:[o, o, o]}, s:[{s:{s:s}, s:o}]}]}", "resourceMetrics", "resource", "attributes",
        attribute("service.name", "smelt"), attribute("run", title), attribute("state", run_status_name(run->state->status)),
        "scopeMetrics", "scope", "name", "smelt", "metrics", metrics);
    return json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(15));
}

/* -- Kubeflow Trainer ---------------------------------------------------------------------------------------------- */

char *export_kubeflow(const ExportedRun *run, double now) {
    enum { MOST_METRICS = 256 /* of the server */ };
    static const char prefix[] = "smelt_run_";
    const RunState *state = run->state;
    char text[40];
    time_t seconds = (time_t)now;
    struct tm utc;
    json_t *metrics = json_array();
    for (const ExportName *name = names; name < names + NAMES; name++) {
        const size_t gpus = gpus_of(name, state);
        for (size_t i = 0; i < (gpus ? gpus : 1); i++) {
            double value = value_of(name, state, i);
            if (!isfinite(value) || json_array_size(metrics) == MOST_METRICS) continue;
            char title[64];
            snprintf(title, sizeof title, gpus ? "%s_%zu" : "%s", name->name + sizeof prefix - 1, i);
            print_exported(value, text);
            json_array_append_new(metrics, json_pack("{s:s, s:s}", "name", title, "value", text));
        }
    }
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    json_t *status = json_pack("{s:o, s:s}", "metrics", metrics, "lastUpdatedTime", text);
    if (state->steps > 0)
        json_object_set_new(
            status, "progressPercentage", json_integer((json_int_t)(100 * fmin(1, (double)state->step / (double)state->steps))));
    if (isfinite(state->seconds_left))
        json_object_set_new(status, "estimatedRemainingSeconds", json_integer((json_int_t)fmin(INT32_MAX, state->seconds_left)));
    json_auto_t *body = json_pack("{s:o}", "trainerStatus", status);
    return json_dumps(body, JSON_COMPACT);
}
