/* The one table of hardware: what sizing rules, forecasts and the doctor know of a processor. Peaks are the
 * vendor's, "best" figures were measured; 0 is unknown, and is printed so. hardware.c names the source of every
 * figure. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

/* How fast classes of operations run. A GEMM of m x n x k reaches `gemm` FLOP/s times its tile and wave efficiency
 * (gemm_fit.h). Attention's rate grows with the length T of a sequence: rate * T / (T + rows), the rows being what
 * starts and ends of its tiles cost. */
typedef struct Rates {
    double gemm;                                        /* FLOP/s of a layer's GEMMs */
    double head;                                        /* of the head with its cross-entropy */
    double experts, expert_weights;                     /* of grouped GEMMs, and of those for gradients of weights */
    double attention, attention_rows;                   /* forward */
    double attention_gradient, attention_gradient_rows; /* backward */
    double convolution;                                 /* of CCA's convolutions, forward and backward */
    double muon;                                        /* of Newton-Schulz GEMMs, counted at half for symmetric ones */
    double memory, optimizer;                           /* bytes/s of elementwise operations, of an AdamW update */
    double launch;                                      /* seconds between two operations */
} Rates;

typedef enum RatesSource {
    RATES_SCALED,   /* those of the H100, in proportion to the best GEMM and copy */
    RATES_MODELLED, /* of smelt's kernels in the cycle model of AMD's GPUs (docs/amd.md) */
    RATES_MEASURED, /* with smelt, on this processor */
} RatesSource;

typedef struct Hardware {
    const char *name, *title; /* as in gpu=mi300x; for people */
    const char *target;       /* as of a device; NULL: a CPU */
    DeviceKind kind;
    int processors, wave;             /* compute units or multiprocessors, lanes */
    int tile_rows, tile_columns;      /* the largest tile of a good GEMM */
    int head_dim;                     /* the least head size that its attention likes */
    double peak_bf16;                 /* FLOP/s, dense */
    double best_bf16;                 /* of a large GEMM, random data */
    double peak_fp8;                  /* FLOP/s, dense; 0: it has no such GEMMs */
    double fp8_gain;                  /* how much quicker a GEMM is in fp8 than in bf16 */
    double plateau;                   /* FLOP that a GEMM needs to come near best_bf16 */
    double memory;                    /* bytes */
    double bandwidth, best_bandwidth; /* bytes/s; best: of a copy, read and written */
    int per_node;                     /* usual GPUs of a node */
    bool switched;                    /* any two GPUs have the whole link; else all others share it */
    double link, best_link;           /* bytes/s of a GPU to its node, one direction; best: bus bandwidth of large collectives */
    double latency;                   /* seconds of a collective in a node beyond bytes / bandwidth */
    double network;                   /* bytes/s of a GPU to other nodes, as the cards of usual clusters allow */
    double runtime;                   /* bytes that driver and libraries take of its memory */
    Rates rates;
    RatesSource source; /* of the rates */
} Hardware;

/* A copy of the row `name`, ERROR_USAGE with all names when there is none. "cpu" is described for the cores and
 * memory of this machine. */
bool hardware_find(Hardware *hardware, const char *name, Error *error);
/* The row of an open device; false when the table does not have it. */
bool hardware_of_device(Hardware *hardware, const Device *device);
/* The vendor's FLOP/s for dense GEMMs of an open GPU in this precision, or, of a run whose linear layers are computed in it, in
 * fp8; NAN: unknown. */
double hardware_peak(const Device *device, Precision precision, bool fp8);
/* Whether smelt has GEMMs of fp8 for it. */
bool hardware_trains_fp8(const Hardware *hardware);
/* ERROR_USAGE for a run with fp8.recipe on a GPU that is known to have no GEMMs of fp8. */
bool hardware_check_fp8(const Hardware *hardware, const Config *config, Error *error);
/* All names, with ", " between them. */
const char *hardware_names(void);

/* Rates in proportion to a measured GEMM (FLOP/s) and copy (bytes/s, read and written), which become the best; 0:
 * not measured. */
void hardware_calibrate(Hardware *hardware, double gemm, double copy);

/* A device to plan programs for that is not here; the caller closes it. */
Device *hardware_device(const Hardware *hardware);
