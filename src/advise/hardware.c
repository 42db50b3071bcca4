/* The table of hardware. Owns nothing.
 *
 * Sources. Peaks, memory, processors and links: the vendors' data sheets (AMD Instinct MI250, MI300X, MI325X,
 * MI355X; NVIDIA A100 80GB SXM, H100 SXM, H200 SXM; dense rates). Best rates: H100 and H200 GEMMs of 8192 cubed
 * through cuBLASLt, random data, and device copies, measured (docs/speed.md); MI300X 708 and MI325X 843 TFLOP/s:
 * AMD's "maximum achievable FLOPS" study; MI300X 4.33 TB/s and the 200 GFLOP plateau: arXiv 2511.17127; its 315 GB/s
 * all-reduce: AMD's RCCL study of 8 GPUs; H200 290 GB/s: NCCL's all-gathers and reduce-scatters of 1 GiB on 2 GPUs without
 * multicast, 292 and 279 (all-reduces 331, of 4 GPUs 351), which stands for the H100 as well (same links). Latency: what AMD's
 * all-reduces of 16 MiB to 1 GiB take beyond bytes / bandwidth, and NCCL's collectives in a step of training on 2 H200.
 * Network: one 400 Gb/s card per GPU (ZAYA1's cluster), 200 Gb/s per A100, 800 Gb/s for the 8 dies of a node of MI250
 * (MosaicML's cluster).
 *
 * FP8 GEMMs: on an H100 they were 1.73 times as fast as in bf16, both of 8192 cubed through
 * cuBLASLt in one run (docs/bench.md); other GPUs gain the same fraction of the ratio of their
 * peaks. A CPU computes them in fp32, at about half the bf16 rate (docs/bench.md).
 *
 * Host link: offload's copies on one H200 of a virtual machine, 2026-12-01, both directions at once:
 * 38 GB/s with 32 GB a step, 42 with 96 GB (docs/finetune.md), of the 63 of PCIe 5. Other GPUs get
 * the same fraction of their link, not measured.
 *
 * An MI250 row describes one of its two dies, which the runtime calls a device.
 *
 * Rates of the H100 were measured with smelt. On 2026-11-21 (docs/speed.md): linear 740-774 and
 * attention 231-451 TFLOP/s over lengths of 1,024 to 8,192 and heads of 64 and 128, elementwise
 * work 2.3-3.0 TB/s, AdamW 2.88 TB/s. From a profile on an H200 on 2026-11-27 (4 x 4,096 tokens of
 * ZAYA1's width), scaled by the ratio of the two cards: head 703, experts 612 and 535, attention's
 * gradient 441, CCA's convolutions 41 forward and 46 backward (30 if a rank has half of the
 * tokens or heads), and GEMMs of 16 to 32 GFLOP, which lose 7 to 15 us each. */
#include "advise/hardware.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "backend/backend.h"
#include "device/gemm.h"

#define TERA 1e12
#define GIGA 1e9
#define GIBI 1073741824.0

/* GB/s of a GPU from and to host memory, both at once. */
#define PCIE5 40
#define PCIE4 20

/* Groups of a row's fields, in the units of data sheets: TFLOP/s, GiB and TB/s, GB/s. 0:
 * unknown. */
#define AMD(short_name, model, code) .name = short_name, .title = "AMD Instinct " model, .target = code, .kind = DEVICE_HIP, .wave = 64, .per_node = 8, .latency = 50e-6
#define NVIDIA(short_name, model, code)                                                                                                         \
    .name = short_name, .title = "NVIDIA " model, .target = code, .kind = DEVICE_CUDA, .wave = 32, .per_node = 8, .switched = true, .latency = 50e-6
#define CPU(short_name, model) .name = short_name, .title = model, .kind = DEVICE_CPU, .host_memory = true, .wave = 1, .per_node = 1, .switched = true, .latency = 50e-6
#define CORES(count, rows, columns, heads) .processors = count, .tile_rows = rows, .tile_columns = columns, .head_dim = heads
#define FLOPS(peak, best) .peak_bf16 = peak * TERA, .best_bf16 = best * TERA
#define FP8(peak) .peak_fp8 = peak * TERA
#define MEMORY(size, peak, best) .memory = size * GIBI, .bandwidth = peak * TERA, .best_bandwidth = best * TERA
#define LINKS(peak, best, cards) .link = peak * GIGA, .best_link = best * GIGA, .network = cards * GIGA
#define HOST(rate) .host_link = rate * GIGA
#define PLATEAU(gigaflop) .plateau = gigaflop * GIGA

static const Hardware table[] = {
    {AMD("mi250", "MI250 (one of two dies)", "gfx90a"), CORES(104, 256, 128, 64), FLOPS(181.05, 0), MEMORY(64, 1.6384, 0), HOST(PCIE4),
        LINKS(150, 0, 12.5)},
    {AMD("mi300x", "MI300X", "gfx942"), CORES(304, 256, 256, 128), FLOPS(1307.4, 708), FP8(2614.9), MEMORY(192, 5.3, 4.33), HOST(PCIE5),
        LINKS(448, 315, 50), PLATEAU(200)},
    {AMD("mi325x", "MI325X", "gfx942"), CORES(304, 256, 256, 128), FLOPS(1307.4, 843), FP8(2614.9), MEMORY(256, 6, 0), HOST(PCIE5),
        LINKS(448, 0, 50), PLATEAU(200)},
    {AMD("mi355x", "MI355X", "gfx950"), CORES(256, 256, 256, 128), FLOPS(2516.6, 0), FP8(5033.2), MEMORY(288, 8, 0), HOST(PCIE5),
        LINKS(537.6, 0, 50)},
    {NVIDIA("a100", "A100 80GB SXM", "sm_80"), CORES(108, 128, 256, 64), FLOPS(312, 0), MEMORY(80, 2.039, 0), HOST(PCIE4),
        LINKS(300, 0, 25)},
    {NVIDIA("h100", "H100 80GB SXM", "sm_90a"), CORES(132, 128, 256, 64), FLOPS(989.4, 782), FP8(1978.9), MEMORY(79.2, 3.35, 2.98),
        HOST(PCIE5), LINKS(450, 290, 50), PLATEAU(100), .source = RATES_MEASURED},
    {NVIDIA("h200", "H200 SXM", "sm_90a"), CORES(132, 128, 256, 64), FLOPS(989.4, 798), FP8(1978.9), MEMORY(139.8, 4.8, 4.19), HOST(PCIE5),
        LINKS(450, 290, 50), PLATEAU(100)},
    /* One measured core of Intel's Sapphire Rapids: peak of the fp32 FMA, a bf16 GEMM computed in
     * fp32, a copy. */
    {CPU("cpu", "CPU of this machine"), CORES(1, 32, 64, 32), FLOPS(0.17, 0.15), MEMORY(0, 0, 0.014), LINKS(0, 0, 1.25)},
};
enum { ROWS = sizeof table / sizeof *table };

static const Rates h100_rates = {.gemm = 735 * TERA,
    .head = 695 * TERA,
    .experts = 600 * TERA,
    .expert_weights = 540 * TERA,
    .attention = 530 * TERA,
    .attention_rows = 1500,
    .attention_gradient = 460 * TERA,
    .attention_gradient_rows = 400,
    .convolution = 39 * TERA,
    .muon = 600 * TERA,
    .memory = 2.6 * TERA,
    .optimizer = 2.88 * TERA,
    .launch = 2e-6};

static const double h100_fp8_gain = 1.73, cpu_fp8_gain = 0.5;

/* Returns the row with measured rates. */
static const Hardware *measured_row(void) {
    const Hardware *row = table;
    while (row->source != RATES_MEASURED) row++;
    return row;
}

/* Rates of smelt's kernels in the cycle model of AMD's GPUs (docs/amd.md, 2026-11-28), as fractions
 * of the matrix units' peak, in FLOPs as op_cost counts them, and of the rate of copies. GEMMs of
 * 8192 cubed; the head of Llama 3.2 1B; ZAYA1-8B's experts, and their weight gradients; each
 * without the loss of the last, partly filled wave, which gemm_fit models. Attention: 32 heads of
 * 128 over 4,096 tokens. CCA: of ZAYA1-8B, 16,384 tokens, forward and backward. The head on gfx950
 * and gfx90a was not modeled and takes the value of gfx942. */
typedef struct ModeledShares {
    const char *target;
    double gemm, head, experts, expert_weights, attention, attention_gradient, convolution, memory, optimizer;
} ModeledShares;

static const ModeledShares modeled[] = {
    {"gfx942", 0.95, 0.72, 0.96, 0.88, 0.64, 0.36, 0.106, 0.9, 1},
    {"gfx950", 0.75, 0.72, 0.68, 0.55, 0.46, 0.25, 0.067, 0.9, 1},
    {"gfx90a", 0.95, 0.72, 0.89, 0.73, 0.56, 0.40, 0.24, 0.9, 1},
};

/* The model ignores that clocks fall under load: GEMMs with HipKittens' structure reach 0.87 of the
 * modeled rate. */
static const double loaded_clock = 0.87;

static void multiply_rates(Rates *rates, double compute, double memory) {
    double *const computing[] = {&rates->gemm, &rates->head, &rates->experts, &rates->expert_weights, &rates->attention,
        &rates->attention_gradient, &rates->convolution, &rates->muon};
    for (size_t i = 0; i < sizeof computing / sizeof *computing; i++) *computing[i] *= compute;
    rates->memory *= memory;
    rates->optimizer *= memory;
}

static double usual_gemm(const Hardware *hardware) {
    const double share = 0.6; /* of the peak; MI300X 0.54, H100 0.79 */
    return hardware->best_bf16 > 0 ? hardware->best_bf16 : share * hardware->peak_bf16;
}
static double usual_copy(const Hardware *hardware) {
    const double share = 0.85; /* of the peak; MI300X 0.82, H100 0.89 */
    return hardware->best_bandwidth > 0 ? hardware->best_bandwidth : share * hardware->bandwidth;
}

/* Scales all rates of the H100 by the ratio of best GEMMs or copies, for a processor on which smelt
 * was neither measured nor modeled. */
static void scale_rates(Hardware *hardware) {
    multiply_rates(
        &hardware->rates, usual_gemm(hardware) / measured_row()->best_bf16, usual_copy(hardware) / measured_row()->best_bandwidth);
}

static const ModeledShares *modeled_shares(const char *target) {
    for (size_t i = 0; target && i < sizeof modeled / sizeof *modeled; i++)
        if (!strcmp(target, modeled[i].target)) return &modeled[i];
    return NULL;
}

/* Returns the FLOP/s of a fraction of the peak, capped at the best measured GEMM. */
static double modeled_rate(const Hardware *hardware, double share) {
    double rate = loaded_clock * share * hardware->peak_bf16;
    return hardware->best_bf16 > 0 ? fmin(rate, hardware->best_bf16) : rate;
}

static void take_modeled_rates(Hardware *hardware, const ModeledShares *shares) {
    const double length = 4096; /* of the modeled attention */
    Rates *rates = &hardware->rates;
    rates->gemm = modeled_rate(hardware, shares->gemm);
    rates->head = modeled_rate(hardware, shares->head);
    rates->experts = modeled_rate(hardware, shares->experts);
    rates->expert_weights = modeled_rate(hardware, shares->expert_weights);
    rates->convolution = modeled_rate(hardware, shares->convolution);
    rates->muon = rates->gemm * h100_rates.muon / h100_rates.gemm;
    rates->attention = modeled_rate(hardware, shares->attention * (1 + rates->attention_rows / length));
    rates->attention_gradient = modeled_rate(hardware, shares->attention_gradient * (1 + rates->attention_gradient_rows / length));
    rates->memory = shares->memory * usual_copy(hardware);
    rates->optimizer = shares->optimizer * usual_copy(hardware);
    hardware->source = RATES_MODELED;
}

void hardware_calibrate(Hardware *hardware, double gemm, double copy) {
    const Hardware *known = measured_row();
    double flops = h100_rates.gemm / known->best_bf16 * gemm / hardware->rates.gemm;
    double bytes = h100_rates.memory / known->best_bandwidth * copy / hardware->rates.memory;
    multiply_rates(&hardware->rates, gemm > 0 ? flops : 1, copy > 0 ? bytes : 1);
    if (gemm > 0) hardware->best_bf16 = gemm;
    if (copy > 0) hardware->best_bandwidth = copy;
}

static void describe_machine(Hardware *cpu) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    cpu->processors = cores > 0 ? (int)cores : 1;
    cpu->memory = pages > 0 ? (double)pages * (double)page : 0;
    cpu->peak_bf16 *= cpu->processors;
    cpu->best_bf16 *= cpu->processors;
    cpu->best_bandwidth *= cpu->processors;
}

/* Returns row `index`, completed from this machine, from the model, or from the H100 in
 * proportion. */
static Hardware complete_row(int index) {
    Hardware hardware = table[index];
    hardware.rates = h100_rates;
    if (hardware.host_memory) describe_machine(&hardware);
    else {
        hardware.runtime = 0.9 * GIBI;
        hardware.communicators[0] = FIRST_COMMUNICATOR;
        hardware.communicators[1] = FURTHER_COMMUNICATOR;
    }
    const Hardware *known = measured_row();
    double ratio = hardware.peak_fp8 / hardware.peak_bf16, known_ratio = known->peak_fp8 / known->peak_bf16;
    hardware.fp8_gain = hardware.host_memory ? cpu_fp8_gain : h100_fp8_gain * ratio / known_ratio;
    const ModeledShares *shares = modeled_shares(hardware.target);
    if (shares) take_modeled_rates(&hardware, shares);
    else if (hardware.source == RATES_SCALED) scale_rates(&hardware);
    return hardware;
}

const char *hardware_names(void) { return "mi250, mi300x, mi325x, mi355x, a100, h100, h200, cpu"; }

bool hardware_find(Hardware *hardware, const char *name, Error *error) {
    for (int i = 0; i < ROWS; i++) {
        if (strcasecmp(name, table[i].name)) continue;
        *hardware = complete_row(i);
        return true;
    }
    return error_set(error, ERROR_USAGE, "gpu='%s' is not in the table of hardware: use one of %s", name, hardware_names());
}

/* Finds the row whose name is part of the driver's name of the GPU: "NVIDIA H100 80GB HBM3". */
bool hardware_of_device(Hardware *hardware, const Device *device) {
    const DeviceInfo *info = device_info(device);
    for (int i = 0; i < ROWS; i++) {
        if (table[i].kind != info->kind || (!info->host_memory && !strcasestr(info->name, table[i].name))) continue;
        *hardware = complete_row(i);
        return true;
    }
    return false;
}

double hardware_peak(const Device *device, Precision precision, bool fp8) {
    Hardware hardware;
    bool known = !device_info(device)->host_memory && precision_is_bf16(precision) && hardware_of_device(&hardware, device);
    double peak = known ? (fp8 ? hardware.peak_fp8 : hardware.peak_bf16) : 0;
    return peak > 0 ? peak : NAN;
}

bool hardware_check_fp8(const Hardware *hardware, const Config *config, Error *error) {
    if (config->model.fp8.recipe == FP8_NONE || hardware->host_memory) return true;
    if (!(hardware->peak_fp8 > 0))
        return error_set(error, ERROR_USAGE, "fp8.recipe: %s has no FP8 GEMMs: remove it, or set another GPU", hardware->title);
    return config->model.fp8.recipe != FP8_MXFP8 || (hardware->target && !strcmp(hardware->target, "gfx950")) ||
           error_set(error, ERROR_USAGE, "fp8.recipe=mxfp8: %s has no GEMMs with scales per 32 elements: set another recipe or GPU",
               hardware->title);
}

static Device *describe_processor(const Hardware *hardware) {
    DeviceInfo info = {
        .kind = hardware->kind, .processors = hardware->processors, .wave = hardware->wave, .memory = (int64_t)hardware->memory};
    snprintf(info.name, sizeof info.name, "%s", hardware->title);
    snprintf(info.target, sizeof info.target, "%s", hardware->target ? hardware->target : "");
    return device_describe(&info);
}

static const unsigned fp8_inputs = 1u << GEMM_E4M3 | 1u << GEMM_E5M2;

bool hardware_trains_fp8(const Hardware *hardware) {
    Device *device = describe_processor(hardware);
    bool trains = (device_info(device)->gemm_inputs & fp8_inputs) == fp8_inputs;
    device_close(device);
    return trains;
}

/* FP8 programs are also planned for processors for which smelt has no FP8 kernels yet. */
Device *hardware_device(const Hardware *hardware) {
    Device *device = describe_processor(hardware);
    if (hardware->peak_fp8 > 0) device->info.gemm_inputs |= fp8_inputs;
    device->info.first_communicator = hardware->communicators[0];
    device->info.further_communicator = hardware->communicators[1];
    return device;
}
