/* The table of hardware. Owns nothing.
 *
 * Sources. Peaks, memory, processors and links: the vendors' data sheets (AMD Instinct MI250, MI300X, MI325X, MI355X; NVIDIA A100 80GB SXM, H100 SXM,
 * H200 SXM; dense rates). Best rates: H100 and H200 products of 8192 cubed through cuBLASLt, random data, and device copies, measured
 * (docs/speed.md); MI300X 708 and MI325X 843 TFLOP/s: AMD's "maximum achievable FLOPS" study; MI300X 4.33 TB/s and the 200 GFLOP plateau: arXiv
 * 2511.17127; its 315 GB/s all-reduce: AMD's RCCL study of 8 GPUs; H200 351 GB/s: NCCL on 4 GPUs without multicast, which stands for the H100 as well
 * (same links). Network: one 400 Gb/s card per GPU (ZAYA1's cluster), 200 Gb/s per A100, 800 Gb/s for the 8 dies of a node of MI250 (MosaicML's
 * cluster).
 *
 * A row's MI250 is one of its two dies, which is what the runtime calls a device.
 *
 * Rates of the H100 are smelt's own of 2026-11-21 (docs/speed.md): linear 740-774, head 614-701, experts 440-460 and 343, attention 231-451
 * and 178-362 TFLOP/s over lengths of 1,024 to 8,192 and heads of 64 and 128, which the two constants below fit within 12%, elementwise work 2.3-3.0
 * TB/s, AdamW 2.88 TB/s. */
#include "advise/hardware.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/memory.h"

#define TERA 1e12
#define GIGA 1e9
#define GIBI 1073741824.0

static const Hardware table[] = {
    {.name = "mi250",
        .title = "AMD Instinct MI250 (one of two dies)",
        .kind = DEVICE_HIP,
        .device_names = "MI250",
        .processors = 104,
        .wave = 64,
        .tile_rows = 256,
        .tile_columns = 128,
        .head_dim = 64,
        .peak_bf16 = 181.05 * TERA,
        .memory = 64 * GIBI,
        .bandwidth = 1.6384 * TERA,
        .per_node = 8,
        .link = 150 * GIGA,
        .network = 12.5 * GIGA},
    {.name = "mi300x",
        .title = "AMD Instinct MI300X",
        .kind = DEVICE_HIP,
        .device_names = "MI300X",
        .processors = 304,
        .wave = 64,
        .tile_rows = 256,
        .tile_columns = 256,
        .head_dim = 128,
        .peak_bf16 = 1307.4 * TERA,
        .peak_fp8 = 2614.9 * TERA,
        .best_bf16 = 708 * TERA,
        .plateau = 200 * GIGA,
        .memory = 192 * GIBI,
        .bandwidth = 5.3 * TERA,
        .best_bandwidth = 4.33 * TERA,
        .per_node = 8,
        .link = 448 * GIGA,
        .best_link = 315 * GIGA,
        .network = 50 * GIGA},
    {.name = "mi325x",
        .title = "AMD Instinct MI325X",
        .kind = DEVICE_HIP,
        .device_names = "MI325X",
        .processors = 304,
        .wave = 64,
        .tile_rows = 256,
        .tile_columns = 256,
        .head_dim = 128,
        .peak_bf16 = 1307.4 * TERA,
        .peak_fp8 = 2614.9 * TERA,
        .best_bf16 = 843 * TERA,
        .plateau = 200 * GIGA,
        .memory = 256 * GIBI,
        .bandwidth = 6 * TERA,
        .per_node = 8,
        .link = 448 * GIGA,
        .network = 50 * GIGA},
    {.name = "mi355x",
        .title = "AMD Instinct MI355X",
        .kind = DEVICE_HIP,
        .device_names = "MI355X",
        .processors = 256,
        .wave = 64,
        .tile_rows = 256,
        .tile_columns = 256,
        .head_dim = 128,
        .peak_bf16 = 2516.6 * TERA,
        .peak_fp8 = 5033.2 * TERA,
        .memory = 288 * GIBI,
        .bandwidth = 8 * TERA,
        .per_node = 8,
        .link = 537.6 * GIGA,
        .network = 50 * GIGA},
    {.name = "a100",
        .title = "NVIDIA A100 80GB SXM",
        .kind = DEVICE_CUDA,
        .device_names = "A100",
        .processors = 108,
        .wave = 32,
        .tile_rows = 128,
        .tile_columns = 256,
        .head_dim = 64,
        .peak_bf16 = 312 * TERA,
        .memory = 80 * GIBI,
        .bandwidth = 2.039 * TERA,
        .per_node = 8,
        .switched = true,
        .link = 300 * GIGA,
        .network = 25 * GIGA},
    {.name = "h100",
        .title = "NVIDIA H100 80GB SXM",
        .kind = DEVICE_CUDA,
        .device_names = "H100",
        .processors = 132,
        .wave = 32,
        .tile_rows = 128,
        .tile_columns = 256,
        .head_dim = 64,
        .peak_bf16 = 989.4 * TERA,
        .peak_fp8 = 1978.9 * TERA,
        .best_bf16 = 782 * TERA,
        .memory = 79.2 * GIBI,
        .bandwidth = 3.35 * TERA,
        .best_bandwidth = 2.98 * TERA,
        .per_node = 8,
        .switched = true,
        .link = 450 * GIGA,
        .best_link = 351 * GIGA,
        .network = 50 * GIGA,
        .measured = true,
        .rates = {.product = 735 * TERA,
            .head = 685 * TERA,
            .experts = 600 * TERA,
            .expert_weights = 500 * TERA,
            .attention = 620 * TERA,
            .attention_rows = 1500,
            .attention_gradient = 700 * TERA,
            .attention_gradient_rows = 1650,
            .muon = 600 * TERA,
            .memory = 2.6 * TERA,
            .optimizer = 2.88 * TERA,
            .launch = 2e-6}},
    {.name = "h200",
        .title = "NVIDIA H200 SXM",
        .kind = DEVICE_CUDA,
        .device_names = "H200",
        .processors = 132,
        .wave = 32,
        .tile_rows = 128,
        .tile_columns = 256,
        .head_dim = 64,
        .peak_bf16 = 989.4 * TERA,
        .peak_fp8 = 1978.9 * TERA,
        .best_bf16 = 798 * TERA,
        .memory = 139.8 * GIBI,
        .bandwidth = 4.8 * TERA,
        .best_bandwidth = 4.19 * TERA,
        .per_node = 8,
        .switched = true,
        .link = 450 * GIGA,
        .best_link = 351 * GIGA,
        .network = 50 * GIGA},
    /* Figures of one core of Intel's Sapphire Rapids, which was measured: peak of the fp32 FMA, products of bf16 in fp32, a copy. */
    {.name = "cpu",
        .title = "CPU of this machine",
        .kind = DEVICE_CPU,
        .device_names = "",
        .wave = 1,
        .tile_rows = 32,
        .tile_columns = 64,
        .head_dim = 32,
        .peak_bf16 = 170 * GIGA,
        .best_bf16 = 150 * GIGA,
        .best_bandwidth = 14 * GIGA,
        .per_node = 1,
        .switched = true,
        .network = 1.25 * GIGA},
};
enum { ROWS = sizeof table / sizeof *table };

static void multiply_rates(Rates *rates, double compute, double memory) {
    double *const computing[] = {&rates->product, &rates->head, &rates->experts, &rates->expert_weights, &rates->attention,
        &rates->attention_gradient, &rates->muon};
    for (size_t i = 0; i < sizeof computing / sizeof *computing; i++) *computing[i] *= compute;
    rates->memory *= memory;
    rates->optimizer *= memory;
}

/* What the measured H100 makes of its best product and copy, for processors on which smelt was not measured. */
static void scale_rates(Hardware *hardware) {
    const Hardware *known = table;
    while (!known->measured) known++;
    const double usual_best = 0.6, usual_copy = 0.85; /* of the peaks: between MI300X (0.54, 0.82) and H100 (0.79, 0.89) */
    double product = hardware->best_bf16 > 0 ? hardware->best_bf16 : usual_best * hardware->peak_bf16;
    double copy = hardware->best_bandwidth > 0 ? hardware->best_bandwidth : usual_copy * hardware->bandwidth;
    hardware->rates = known->rates;
    multiply_rates(&hardware->rates, product / known->best_bf16, copy / known->best_bandwidth);
}

void hardware_calibrate(Hardware *hardware, double product, double copy) {
    const Hardware *known = table;
    while (!known->measured) known++;
    double base = known->rates.product / known->best_bf16 * product / hardware->rates.product;
    double bytes = known->rates.memory / known->best_bandwidth * copy / hardware->rates.memory;
    multiply_rates(&hardware->rates, product > 0 ? base : 1, copy > 0 ? bytes : 1);
    if (product > 0) hardware->best_bf16 = product;
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

static void complete(Hardware *hardware) {
    if (hardware->kind == DEVICE_CPU) describe_machine(hardware);
    else hardware->runtime = 0.9 * GIBI;
    if (!hardware->measured) scale_rates(hardware);
}

const char *hardware_names(void) { return "mi250, mi300x, mi325x, mi355x, a100, h100, h200, cpu"; }

bool hardware_find(Hardware *hardware, const char *name, Error *error) {
    for (int i = 0; i < ROWS; i++) {
        if (strcasecmp(name, table[i].name)) continue;
        *hardware = table[i];
        complete(hardware);
        return true;
    }
    return error_set(error, ERROR_USAGE, "gpu='%s' is not in the table of hardware: give one of %s", name, hardware_names());
}

/* Whether one of `parts`, with | between them, occurs in `name`. */
static bool names_match(const char *parts, const char *name) {
    char part[32];
    while (*parts) {
        size_t length = strcspn(parts, "|");
        snprintf(part, sizeof part, "%.*s", (int)length, parts);
        if (strcasestr(name, part)) return true;
        parts += length + (parts[length] == '|');
    }
    return false;
}

bool hardware_of_device(Hardware *hardware, const Device *device) {
    const DeviceInfo *info = device_info(device);
    for (int i = 0; i < ROWS; i++) {
        if (table[i].kind != info->kind || (info->kind != DEVICE_CPU && !names_match(table[i].device_names, info->name))) continue;
        *hardware = table[i];
        complete(hardware);
        return true;
    }
    return false;
}

Device *hardware_device(const Hardware *hardware) {
    DeviceInfo info = {
        .kind = hardware->kind, .processors = hardware->processors, .wave = hardware->wave, .memory = (int64_t)hardware->memory};
    snprintf(info.name, sizeof info.name, "%s", hardware->title);
    return device_describe(&info);
}
