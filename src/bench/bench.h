/* Benchmarks: the speed of this machine, measured with the code that trains on it. One file is one
 * benchmark. Each benchmark is a row of a table: its name, its options, its columns, and a function
 * that measures and adds rows to a table of results. Shared parts are timing (timing.c), results as
 * text, CSV and JSON with the machine's description (results.c), and a plot of the results
 * (plot.c).
 *
 * The command makes a Bench, passes it to one benchmark and writes the results. A Bench owns its
 * results. The benchmark opens the device if it needs one, and the command closes it. */
#pragma once

#include "base/math.h"
#include "base/scope.h"
#include "comm/comm.h"
#include "config/config.h"
#include "graph/graph.h"

/* -- Options ------------------------------------------------------------------------------------------------------- */

/* Options that every benchmark has. The options struct of a benchmark begins with it, and its
 * option table with BENCH_ROWS, or with BENCH_OUTPUT_ROWS if it measures nothing on a device. */
typedef struct BenchOptions {
    int device; /* DeviceKind */
    int64_t threads, repeats;
    double seconds;
    const char *csv, *json, *plot;
} BenchOptions;

#define BENCH_OUTPUT_ROWS                                                                                                                                      \
    {"csv", OPTION_STRING, offsetof(BenchOptions, csv), "", 0, 0, NULL, "", "CSV file for the results; each row names the machine"},                          \
    {"json", OPTION_STRING, offsetof(BenchOptions, json), "", 0, 0, NULL, "", "JSON file for the results, the machine and the settings"},                      \
    {"plot", OPTION_STRING, offsetof(BenchOptions, plot), "", 0, 0, NULL, "", "SVG file for a plot of the results"}

#define BENCH_ROWS                                                                                                                                             \
    {"device", OPTION_CHOICE, offsetof(BenchOptions, device), "auto", 0, 0, "auto|cpu|hip|cuda", "", "device to measure; auto: a GPU if there is one, else the CPU"},        \
    {"threads", OPTION_INT, offsetof(BenchOptions, threads), "0", 0, 4096, NULL, "threads", "CPU threads; 0: all"},                                       \
    {"repeats", OPTION_INT, offsetof(BenchOptions, repeats), "9", 1, 1000, NULL, "", "number of measurements; the median is reported"},                                 \
    {"seconds", OPTION_REAL, offsetof(BenchOptions, seconds), "0.5", 0, 3600, NULL, "s", "approximate total time of the repeats of one measurement"},          \
    BENCH_OUTPUT_ROWS

/* -- Results ------------------------------------------------------------------------------------------------------- */

enum { BENCH_TEXT = -1, BENCH_PLOT_SERIES = 4 };

typedef struct BenchColumn {
    const char *name; /* "gbps"; also the JSON key */
    int decimals;     /* of numbers on the screen; BENCH_TEXT: the column has text */
    int width;        /* on the screen, in columns */
} BenchColumn;

/* A text, or a number if the text is NULL; NAN: unknown. */
typedef struct BenchCell {
    const char *text;
    double number;
} BenchCell;

#define TEXT(string) {.text = (string)}
#define NUMBER(value) {.number = (double)(value)}

/* Names of columns. Rows with equal values in the columns of `series` (up to the first NULL) form
 * one curve. */
typedef struct BenchPlot {
    const char *title, *x, *y, *series[BENCH_PLOT_SERIES];
    const char *x_label, *y_label;
    bool x_logarithmic, y_logarithmic;
} BenchPlot;

typedef struct BenchResults {
    const BenchColumn *columns;
    int column_count;
    BenchCell *cells; /* row after row; their texts are owned */
    int row_count;
    BenchPlot plot;
} BenchResults;

/* -- Benchmarks ---------------------------------------------------------------------------------------------------- */

typedef enum BenchConfig { BENCH_CONFIG_NONE, BENCH_CONFIG_OPTIONAL, BENCH_CONFIG_REQUIRED } BenchConfig;

typedef struct Bench {
    const struct Benchmark *benchmark;
    const void *options;    /* the benchmark's options struct, which begins with BenchOptions */
    Config config;          /* from CONFIG.yaml and key=value, checked; defaults without CONFIG.yaml */
    bool configured;        /* CONFIG.yaml was given */
    const char *positional; /* the argument that is not an option; "" if there is none */
    Device *device;         /* NULL until it is opened: bench_open_device */
    Comm *comm;             /* of bench train: the ranks that measure together; NULL: this process alone */
    Device *(*open_device)(int choice, Precision precision, Error *error);
    Device *(*open_local_device)(int choice, Precision precision, const Comm *comm, Error *error);
    void (*recommend)(const char *name, const char *value); /* CommOptions.recommend */
    BenchResults results;                                   /* starts with the benchmark's columns and plot */
    bool silent;                                            /* a rank other than the first, which prints and writes nothing */
} Bench;

typedef struct Benchmark {
    const char *name, *summary; /* one line */
    const char *explanation;    /* for its --help */
    const char *positional;     /* name of a required argument that is not an option, or NULL */
    BenchConfig config;
    bool ranks; /* true: all ranks of smelt launch measure together; false: one process alone */
    OptionTable table;
    size_t options_size;
    const BenchColumn *columns;
    int column_count;
    BenchPlot plot;
    bool (*run)(Bench *bench, Error *error);
} Benchmark;

/* The parts that every benchmark's file defines under these names: `rows` of options for the struct
 * Options, and `columns`. `function` runs it. */
#define BENCH_PARTS(Options, function) \
    .table = OPTION_TABLE(rows), .options_size = sizeof(Options), .columns = columns, .column_count = sizeof columns / sizeof *columns, .run = function

extern const Benchmark bench_gemm, bench_memory, bench_attention, bench_optimizer, bench_storage, bench_loader, bench_train, bench_suite,
    bench_collective, bench_decode, bench_batch;

/* Opens the requested device, once. ERROR_USAGE, ERROR_DEVICE. */
bool bench_open_device(Bench *bench, Precision precision, Error *error);

/* -- Results (results.c) ------------------------------------------------------------------------------------------- */

/* Adds a row, one cell per column, and prints it to stdout; the names of the columns precede the
 * first row. Texts are copied. */
void bench_row(Bench *bench, const BenchCell *cells);
/* Writes csv=, json= and plot= if they were given. ERROR_DATA if a file cannot be written. */
bool bench_write(const Bench *bench, Error *error);
/* Return whether a file is a benchmark result of this kind. Only such files may be replaced. */
bool bench_is_csv(const char *path);
bool bench_is_json(const char *path);
bool bench_is_plot(const char *path);
void bench_free_results(Bench *bench);
/* Returns the index of a column, which must exist. */
int bench_column(const BenchResults *results, const char *name);

/* Draws the results' plot as a self-contained SVG. */
void bench_draw(const BenchResults *results, const char *subtitle, FILE *file);

/* -- Lists --------------------------------------------------------------------------------------------------------- */

enum { BENCH_LIST_NUMBERS = 4096 };
typedef struct BenchList {
    int64_t numbers[BENCH_LIST_NUMBERS];
    int count;
} BenchList;

/* Parses the numbers of a text: "64,128,1Ki", "256..8192" (doubling) or "256..4096+256", in any
 * mixture. ERROR_USAGE naming `option` if the text is not such a list, has a number outside 1 ..
 * `most`, or has more than BENCH_LIST_NUMBERS. */
bool bench_list(BenchList *list, const char *option, const char *text, int64_t most, Error *error);

/* -- Timing (timing.c) --------------------------------------------------------------------------------------------- */

/* Work to be timed; `call` counts up from 0 and selects one of the rotating buffers. */
typedef void (*BenchWork)(void *context, int64_t call);

typedef struct BenchTime {
    double seconds; /* of one call: median over the repeats */
    double best;    /* the fastest repeat */
    int64_t calls;  /* in total */
} BenchTime;

/* Times `repeats` repeats of as many calls as fill `seconds`, at least one. Half as many repeats
 * run first and are not counted; they bring clocks and power to their steady state. A GPU is timed
 * by its own clock, so that calls queue up. Returns false if the device failed. */
bool bench_time(Bench *bench, BenchWork work, void *context, BenchTime *time, Error *error);
/* Returns how many calls of `seconds` each fill one repeat; 1 to 2^20. */
int64_t bench_calls(const BenchOptions *options, double seconds);

/* The sizes that benchmarks measure by default. */
typedef struct BenchSizes {
    const char *gemm_m, *attention_lengths, *collective_bytes; /* ranges in bench_list's syntax */
    int64_t attention_heads, attention_tokens, optimizer_parameters;
    int64_t memory_least; /* bytes of the smallest working set */
    int64_t best_gemm[2]; /* orders of the smallest and the largest square GEMM of bench_best_gemm */
} BenchSizes;
const BenchSizes *bench_sizes(const Device *device);

/* Returns whether the device has `bytes` for `what`, as far as it knows. If not, ERROR_MEMORY
 * suggests `less`. */
bool bench_fits(const Device *device, int64_t bytes, const char *what, const char *less, Error *error);

/* Device memory with random normal numbers in `type` (FP8: the device's format), to be cut into
 * sets that are used in turn. By the time a set is reused, it has left all caches. */
typedef struct BenchArena {
    Device *device;
    char *memory;
    int64_t bytes;
} BenchArena;
/* Allocates twice the cache, at least one set of `set_bytes`; with `cold` false exactly one set.
 * ERROR_MEMORY. */
bool bench_arena_open(BenchArena *arena, Device *device, int64_t set_bytes, bool cold, GemmType type, Error *error);
void bench_arena_close(BenchArena *arena);
/* Returns the set of `set_bytes` (a multiple of 256) for a call. */
char *bench_arena_set(const BenchArena *arena, int64_t set_bytes, int64_t call);

static inline int64_t bench_type_bytes(GemmType type) { return gemm_is_fp8(type) ? 1 : type == GEMM_BF16 ? 2 : type == GEMM_F32 ? 4 : 8; }
static inline int64_t bench_round(int64_t bytes) { return round_up(bytes, 256); }

/* -- Shared between benchmarks ------------------------------------------------------------------------------------- */

/* Returns the FLOP/s of the best of a few large GEMMs in a precision, the reference of "% of
 * measured best". 0 for fp64. (bench_gemm.c) */
double bench_best_gemm(Bench *bench, Precision precision);
/* Returns a training's type name: "fp8" with fp8.recipe, else the precision. */
const char *bench_type_name(const Config *config);

/* The training speed of a configuration (bench_train.c). */
typedef struct TrainSpeed {
    int64_t microbatch;                            /* sequences */
    int64_t accumulation;                          /* microbatches per step */
    double step_seconds, tokens_per_second, flops; /* FLOP/s, without recomputation */
    int64_t memory;                                /* bytes: the plan's on a GPU, else the process's peak */
    int64_t parameters;
} TrainSpeed;
/* Who chooses the experts of a row: the model's untrained routers, the benchmark, or the trace that a
 * training run recorded. */
typedef enum BenchRouting { BENCH_ROUTING_MODEL, BENCH_ROUTING_BALANCED, BENCH_ROUTING_RANDOM, BENCH_ROUTING_TRACE } BenchRouting;
typedef struct TrainMeasure {
    int64_t microbatch;   /* sequences; 0: search */
    int64_t accumulation; /* 0: from batch.tokens */
    int64_t steps;        /* whole steps to time, after one warm-up step */
    int routing;          /* BenchRouting */
    const char *trace;    /* the file of BENCH_ROUTING_TRACE; else NULL or "" */
} TrainMeasure;
/* The options struct of a benchmark that trains begins with TrainOptions, and its option table with
 * BENCH_ROWS, TRAIN_ROWS. */
typedef struct TrainOptions {
    BenchOptions common;
    TrainMeasure measure;
} TrainOptions;
#define TRAIN_ROWS \
    {"microbatch", OPTION_INT, offsetof(TrainOptions, measure.microbatch), "0", 0, 1 << 24, NULL, "sequences", "sequences per microbatch; 0: search for the fastest number"}, \
    {"accumulation", OPTION_INT, offsetof(TrainOptions, measure.accumulation), "4", 0, 1 << 24, NULL, "microbatches", "microbatches per step; 0: from batch.tokens of the configuration"}, \
    {"measured_steps", OPTION_INT, offsetof(TrainOptions, measure.steps), "3", 1, 1000000, NULL, "steps", "steps timed together, after one warm-up step"}
/* ERROR_MEMORY if not even one sequence fits. */
bool bench_train_measure(Bench *bench, const Config *config, const TrainMeasure *measure, TrainSpeed *speed, Error *error);
