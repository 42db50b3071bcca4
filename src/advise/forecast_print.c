/* Prints a forecast: its subject, memory, time, and its assumptions. */
#include "advise/forecast.h"

#include "base/log.h"
#include "base/math.h"
#include "base/strings.h"
#include "config/layout_rules.h"
#include "layout/pipeline_schedule.h"

static const char *const policies[] = {"none", "norm", "attention", "block", "auto"};

static void print_forecast_memory(const Forecast *forecast, const Hardware *hardware, FILE *file) {
    const Budget *m = &forecast->memory;
    const struct {
        const char *name;
        int64_t bytes;
    } rows[] = {{"weights", m->weights}, {"weights in fp8", m->quantized}, {"master weights", m->master}, {"gradients", m->gradients},
        {"optimizer state", m->optimizer}, {"activations", m->activations},
        {"scratch, inputs, evaluation", m->scratch + m->evaluation + m->other}, {"generation", m->generation},
        {"buffers of collectives", m->collectives}, {"GEMM trials", m->trials}, {"driver and libraries", (int64_t)hardware->runtime},
        {"total", m->total}};
    char text[32];
    if (forecast->layout.ranks.pp > 1) fprintf(file, "memory of a rank of stage %d, which needs the most\n", forecast->stage);
    else fprintf(file, "memory of a rank\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].bytes <= 0) continue;
        log_format_bytes((double)rows[i].bytes, text);
        fprintf(file, "  %-28s %12s %6.1f%%\n", rows[i].name, text, 100 * (double)rows[i].bytes / (double)m->total);
    }
    log_format_bytes((double)m->hosted, text);
    if (m->hosted) fprintf(file, "  %-28s %12s  pinned, for the optimizer state of offload\n", "host memory", text);
    log_format_bytes((double)m->saved, text);
    if (m->saved) fprintf(file, "  %-28s %12s  pinned, for the activations of offload\n", "host memory", text);
    log_format_bytes(hardware->memory, text);
    fprintf(file, "  %-28s %12s %s\n\n", "the processor has", text, forecast->fits ? "" : "  it does not fit");
}

static void print_time_row(FILE *file, const char *name, double seconds, double step) {
    if (seconds > 0) fprintf(file, "  %-34s %9.1f ms %6.1f%%\n", name, 1e3 * seconds, 100 * seconds / step);
}

static void print_forecast_time(const Forecast *forecast, FILE *file) {
    double count = (double)forecast->microbatches;
    fprintf(file, "time of a step (%lld microbatch%s)\n", (long long)forecast->microbatches, forecast->microbatches == 1 ? "" : "es");
    for (int class = 0; class < WORK_CLASSES; class++)
        print_time_row(file, work_class_name(class), count * forecast->work.seconds[class], forecast->step);
    print_time_row(file, "weights to fp8, once a step", forecast->work.once, forecast->step);
    print_time_row(file, "optimizer", forecast->optimizer, forecast->step);
    print_time_row(file, "copies of offload, not hidden", forecast->offload, forecast->step);
    print_time_row(file, "waiting for collectives", forecast->waits, forecast->step);
    print_time_row(file, "pipeline bubble", forecast->bubble, forecast->step);
    print_time_row(file, "gradients and weights, not hidden", forecast->exposed, forecast->step);
    print_time_row(file, "step", forecast->step, forecast->step);
    if (forecast->communication > 0) fprintf(file, "  (collectives in all %.1f ms)\n", 1e3 * forecast->communication);
    fprintf(file, "\n");
}

/* Prints what each group of ranks sends in a step, and how long that takes. */
static void print_traffic(const Forecast *forecast, const Cluster *cluster, FILE *file) {
    if (!forecast->traffic.count) return;
    fprintf(file, "collectives of a rank and step        number     sends   seconds\n");
    for (int i = 0; i < forecast->traffic.count; i++) {
        const TrafficRow *row = &forecast->traffic.rows[i];
        Traffic one = {.axes = row->axes, .bytes = row->bytes / row->count};
        char name[64], axes[32], bytes[32];
        traffic_name_axes(&forecast->mesh, row->axes, axes, sizeof axes);
        snprintf(name, sizeof name, "%s over %s", row->operation, axes);
        log_format_bytes(row->bytes, bytes);
        double seconds = row->messages > 0 ? cluster_ring_seconds(cluster, &forecast->mesh, &one, row->messages / row->count)
                                           : cluster_seconds(cluster, &forecast->mesh, &one);
        fprintf(file, "  %-32s %9.0f %10s %9.3f\n", name, row->count, bytes, row->count * seconds);
    }
    fputc('\n', file);
}

static void print_rates(const Forecast *forecast, const Config *config, const Cluster *cluster, FILE *file) {
    const Hardware *hardware = &cluster->hardware;
    const char *processor = hardware->host_memory ? "CPU" : "GPU";
    char all[32];
    log_format_count(forecast->tokens_per_second * (double)cluster->gpus, all);
    fprintf(file, "tokens/s of a %s        %.0f\ntokens/s in all          %s\n", processor, forecast->tokens_per_second, all);
    if (config->epochs <= 0) {
        log_format_long_duration(forecast->step * (double)config->steps, all);
        fprintf(file, "time of %lld step%-*s %s\n", (long long)config->steps, 11 - snprintf(NULL, 0, "%lld", (long long)config->steps),
            plural(config->steps), all);
    }
    fprintf(file, "TFLOP/s of a %s         %.1f", processor, 1e-12 * forecast->flops);
    bool fp8 = config->model.fp8.recipe != FP8_NONE && hardware->peak_fp8 > 0;
    double peak = fp8 ? hardware->peak_fp8 : hardware->peak_bf16;
    if (peak > 0) fprintf(file, ", %.1f%% of peak%s", 100 * forecast->flops / peak, fp8 ? " in fp8" : "");
    if (hardware->best_bf16 > 0) fprintf(file, ", %.1f%% of the best GEMM in bf16", 100 * forecast->flops / hardware->best_bf16);
    fprintf(file, "\n\n");
}

static void print_assumptions(const Forecast *forecast, const Config *config, const Cluster *cluster, FILE *file) {
    const Hardware *hardware = &cluster->hardware;
    const Rates *rates = &hardware->rates;
    fprintf(file, "assumptions\n");
    if (cluster->measured)
        fprintf(file, "- calibrated by %s: GEMMs take the rate of the nearest measured shape; all other rates are scaled in proportion\n",
            cluster->measured->source);
    static const char *const sources[] = {[RATES_SCALED] = "rates of the H100 in proportion to the best GEMM and copy of this processor",
        [RATES_MODELED] = "rates of smelt's kernels in a cycle model (docs/amd.md), limited to the best known GEMM",
        [RATES_MEASURED] = "rates measured with smelt on this processor"};
    fprintf(file,
        "- %s: GEMMs %.3g, head %.3g, attention %.3g forward and %.3g backward (long sequences) TFLOP/s; memory %.3g, optimizer %.3g "
        "TB/s\n",
        sources[hardware->source], 1e-12 * rates->gemm, 1e-12 * rates->head, 1e-12 * rates->attention, 1e-12 * rates->attention_gradient,
        1e-12 * rates->memory, 1e-12 * rates->optimizer);
    if (hardware->best_bf16 <= 0)
        fprintf(
            file, "- no GEMM was measured on this processor%s\n", hardware->source == RATES_SCALED ? ": 0.6 of its peak is assumed" : "");
    if (config->model.fp8.recipe != FP8_NONE)
        fprintf(file, "- GEMMs in fp8 are %.2f times as fast as in bf16; casts run at the memory rate%s\n", hardware->fp8_gain,
            hardware->host_memory                ? "; a CPU computes them in fp32"
            : hardware->source == RATES_MEASURED ? ""
                                                 : "; this is the gain of an H100, scaled by the peaks in the data sheets");
    if (config->model.fp8.recipe != FP8_NONE && !hardware_trains_fp8(hardware))
        fprintf(file, "- smelt has no fp8 kernels for this processor yet, so training on it refuses fp8.recipe\n");
    fprintf(file, "- every token attends to its whole sequence; %s; no step waits for data\n",
        cluster->routed ? "each layer's experts take as long as on the rank with the most rows of bench.trace"
                        : "experts get equal numbers of tokens");
    if (forecast->idle)
        fprintf(file,
            "- %lld of %lld copies of the model have no microbatch in the last round of a step: batch.tokens=%lld is not a multiple of the "
            "tokens that all copies take at once\n",
            (long long)forecast->idle, (long long)forecast->copies, (long long)config->batch.tokens);
    if (cluster->gpus < 2) return;
    fprintf(file,
        "- collectives run at %.0f GB/s bus bandwidth in a node (%s) and %.1f GB/s per GPU between nodes; gradients are reduced in %s; "
        "half of the time for gradients and weights overlaps with computing; collectives inside layers overlap with independent work\n",
        1e-9 * cluster_node_bandwidth(cluster, int_min(cluster->per_node, cluster->gpus)),
        hardware->best_link > 0 ? "of a measured all-reduce" : "0.72 of the links' peak", 1e-9 * hardware->network,
        config->precision == PRECISION_FP64                                                ? "fp64"
        : config->layout.reduce == REDUCE_BF16 || config->precision == PRECISION_PURE_BF16 ? "bf16"
                                                                                           : "fp32");
}

/* Writes "dp 4, tp 2, zero 1, batch.sequences=2, recompute=none": dp, the axes larger than 1, and
 * the schedule of a pipeline unless it is 1F1B. */
static void describe_layout(const ForecastLayout *layout, char *text, size_t size) {
    const LayoutConfig *r = &layout->ranks;
    const struct {
        const char *name;
        int64_t size;
    } axes[] = {{"tp", r->tp}, {"cp", r->cp}, {"ep", r->ep}, {"pp", r->pp}};
    size_t used = (size_t)snprintf(text, size, "dp %lld", (long long)r->dp);
    for (size_t i = 0; i < sizeof axes / sizeof *axes && used < size; i++)
        if (axes[i].size > 1) used += (size_t)snprintf(text + used, size - used, ", %s %lld", axes[i].name, (long long)axes[i].size);
    if (r->pp > 1 && r->pp_schedule != PIPELINE_1F1B && used < size)
        used += (size_t)snprintf(text + used, size - used, " %s", pipeline_kind_name((PipelineKind)r->pp_schedule));
    if (layout_chunks(r) > 1 && used < size)
        used += (size_t)snprintf(text + used, size - used, " in %lld chunks", (long long)layout_chunks(r));
    if (used < size)
        snprintf(text + used, size - used, ", zero %lld, batch.sequences=%lld, recompute=%s", (long long)r->zero,
            (long long)layout->sequences, policies[layout->recompute]);
}

void forecast_print(const Forecast *forecast, const Config *config, const Cluster *cluster, FILE *file) {
    const ForecastLayout *layout = &forecast->layout;
    int64_t local = int_min(cluster->per_node, cluster->gpus);
    char text[160], needed[32], memory[32];
    log_format_bytes((double)forecast->memory.total, needed);
    log_format_bytes(cluster->hardware.memory, memory);
    if (!forecast->fits) fprintf(file, "It does not fit: a rank needs %s, and the processor has %s.\n", needed, memory);
    fprintf(
        file, "modeled, not measured: %lld x %s (%lld to a node)\n", (long long)cluster->gpus, cluster->hardware.title, (long long)local);
    describe_layout(layout, text, sizeof text);
    fprintf(file, "layout: %s; %.0f tokens per step\n\n", text, forecast->tokens);
    print_forecast_memory(forecast, &cluster->hardware, file);
    print_traffic(forecast, cluster, file);
    print_forecast_time(forecast, file);
    print_rates(forecast, config, cluster, file);
    print_assumptions(forecast, config, cluster, file);
}

void forecast_print_search(const ForecastSearch *search, const Config *config, FILE *file) {
    fprintf(file, "\ntried %d layouts; %d do not fit\n", search->tried, search->unfit);
    fprintf(file, "  %d got a full forecast; by a lower bound, no other layout that fits is faster than the first\n", search->whole);
    if (config_needs_microbatch(config))
        fprintf(file, "  all with batch.sequences=%lld, on which the load-balancing loss depends (model.auxiliary_loss=%g)\n",
            (long long)config->batch.sequences, config->model.auxiliary_loss);
    fprintf(file, "  tok/s of a GPU     step     memory  layout\n");
    for (int i = 0; i < (search->count ? search->count : 1); i++) {
        const Forecast *found = &search->found[i];
        char text[160], bytes[32];
        describe_layout(&found->layout, text, sizeof text);
        log_format_bytes((double)found->memory.total, bytes);
        fprintf(
            file, "  %14.0f %7.3g s %10s  %s%s\n", found->tokens_per_second, found->step, bytes, text, found->fits ? "" : ": does not fit");
    }
    for (int i = 0; i < search->refusal_count; i++) {
        const ForecastRefusal *refusal = &search->refusals[i];
        fprintf(file, "  %d not tried: %s\n", refusal->layouts, refusal->reason);
    }
    if (search->found[0].idle)
        fprintf(file, "  in the first layout, %lld copies of the model have no microbatch in the last round of a step\n",
            (long long)search->found[0].idle);
}
