/* The table of hardware, used by sizing rules, forecasts and the doctor. Peaks are the vendor's;
 * "best" values were measured; 0 is unknown and is printed as unknown. hardware.c names the source
 * of every value. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

/* Rates of classes of operations. A GEMM of m x n x k reaches `gemm` FLOP/s times its tile and wave
 * efficiency (gemm_fit.h). Attention's rate grows with the length T of a sequence: rate * T / (T +
 * rows). The rows are the cost of starting and ending its tiles. */
typedef struct Rates {
    double gemm;                                        /* FLOP/s of a layer's GEMMs */
    double head;                                        /* of the head with its cross-entropy */
    double experts, expert_weights;                     /* of grouped GEMMs, and of grouped GEMMs for weight gradients */
    double attention, attention_rows;                   /* forward */
    double attention_gradient, attention_gradient_rows; /* backward */
    double convolution;                                 /* of CCA's convolutions, forward and backward */
    double muon;                                        /* of Newton-Schulz GEMMs; symmetric ones count half */
    double memory, optimizer;                           /* bytes/s of elementwise operations; of an AdamW update */
    double launch;                                      /* seconds between two operations */
} Rates;

typedef enum RatesSource {
    RATES_SCALED,   /* the rates of the H100, in proportion to the best GEMM and copy */
    RATES_MODELED,  /* of smelt's kernels in the cycle model of AMD's GPUs (docs/amd.md) */
    RATES_MEASURED, /* with smelt, on this processor */
} RatesSource;

typedef struct Hardware {
    const char *name, *title; /* name as in gpu=mi300x; title for people */
    const char *target;       /* as for a device; NULL: a CPU */
    DeviceKind kind;
    bool host_memory;                 /* as in DeviceInfo: the CPU of this machine */
    int processors, wave;             /* compute units or multiprocessors, lanes */
    int tile_rows, tile_columns;      /* the largest tile of a good GEMM */
    int head_dim;                     /* smallest head size that its attention runs well */
    double peak_bf16;                 /* FLOP/s, dense */
    double best_bf16;                 /* of a large GEMM, random data */
    double peak_fp8;                  /* FLOP/s, dense; 0: no FP8 GEMMs */
    double fp8_gain;                  /* speed of FP8 GEMMs over bf16 GEMMs */
    double plateau;                   /* FLOP of a GEMM that comes near best_bf16 */
    double memory;                    /* bytes */
    double bandwidth, best_bandwidth; /* bytes/s; best: of a copy, read and written */
    int per_node;                     /* usual number of GPUs per node */
    bool switched;                    /* any two GPUs get the whole bandwidth; otherwise it is divided among all other GPUs */
    double link, best_link;           /* bytes/s of a GPU inside its node, one direction; best: bus bandwidth of large collectives */
    double latency;                   /* seconds of a collective in a node beyond bytes / bandwidth */
    double host_link;                 /* bytes/s of a GPU from host memory, and at the same time to it, that large copies reach */
    double network;                   /* bytes/s of a GPU to other nodes, with the cards of usual clusters */
    double runtime;                   /* bytes of its memory that driver and libraries take */
    int64_t communicators[2];         /* as in DeviceInfo: first_communicator, further_communicator */
    Rates rates;
    RatesSource source; /* of the rates */
} Hardware;

/* Copies the row `name`; ERROR_USAGE with all names if there is none. "cpu" is described by the
 * cores and memory of this machine. */
bool hardware_find(Hardware *hardware, const char *name, Error *error);
/* Finds the row of an open device; returns false if the table has none. */
bool hardware_of_device(Hardware *hardware, const Device *device);
/* Returns the vendor's FLOP/s for dense GEMMs of an open GPU in this precision, or in FP8 for a run
 * whose linear layers use it; NAN: unknown. */
double hardware_peak(const Device *device, Precision precision, bool fp8);
/* Returns whether smelt has FP8 GEMMs for this hardware. */
bool hardware_trains_fp8(const Hardware *hardware);
/* ERROR_USAGE for a run with fp8.recipe on a GPU that is known to have no FP8 GEMMs. */
bool hardware_check_fp8(const Hardware *hardware, const Config *config, Error *error);
/* Returns all names, separated by ", ". */
const char *hardware_names(void);

/* Replaces the best GEMM rate (FLOP/s) and copy rate (bytes/s, read and written) by measured
 * ones, and scales all other rates in proportion. 0: not measured. */
void hardware_calibrate(Hardware *hardware, double gemm, double copy);

/* Makes a device for planning programs without the hardware; the caller closes it. */
Device *hardware_device(const Hardware *hardware);
