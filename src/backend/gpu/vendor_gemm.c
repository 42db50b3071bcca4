/* See vendor_gemm_internal.h. Functions and numbers of the libraries are in
 * vendor_gemm_calls_internal.h. Owns the library's handle, its workspace, descriptors of every
 * shape seen and, during a trial, a second C. */
#include "backend/gpu/vendor_gemm_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/element.h"
#include "base/library.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/sort.h"
#include "backend/gpu/autotune_cache_internal.h"
#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/vendor_gemm_calls_internal.h"

enum { MOST_PROPOSALS = 8, ALGORITHM_WORDS = GEMM_ALGORITHM_MOST_BYTES / 8, BANDS = 8, BAND_ROWS = 8, MOST_TRIES = 8 };
static const uint64_t WORKSPACE_BYTES = 64 << 20;
static const int64_t BIAS_BYTES = 1 << 20; /* after the workspace: one bias in bf16 */
/* Limits of a trial: operands A and B, the scratch C, and the rows of smelt's kernel. */
static const int64_t OPERAND_BYTES = 256 << 20, SCRATCH_BYTES = 256 << 20, BAND_BYTES = 128 << 20;
static_assert(VENDOR_GEMM_TRIAL_BYTES == (256 << 20) + (256 << 20) + (128 << 20), "the limits of a trial add up");

/* -- The two libraries --------------------------------------------------------------------------------------------- */

typedef struct LtApi { LT_API(LIBRARY_FIELD) } LtApi;
#define HIP_NAME(name, symbol, arguments) "hipblasLt" #symbol,
#define CUDA_NAME(name, symbol, arguments) "cublasLt" #symbol,
static const char *const symbols[][sizeof(LtApi) / sizeof(void *)] = {
    [DEVICE_HIP] = {LT_API(HIP_NAME)}, [DEVICE_CUDA] = {LT_API(CUDA_NAME)}};

/* The numbers of a library: fields of LT_NUMBERS. */
#define LT_FIELD(name, hip, hip_name, cuda, cuda_name) int name;
typedef struct LtNumbers { LT_NUMBERS(LT_FIELD) } LtNumbers;
#define HIP_NUMBER(name, hip, hip_name, cuda, cuda_name) .name = hip,
#define CUDA_NUMBER(name, hip, hip_name, cuda, cuda_name) .name = cuda,

typedef struct GemmLibrary {
    const char *name, *files[4];
    bool nvidia;
    LtNumbers is;
} GemmLibrary;

static const GemmLibrary libraries[] = {
    [DEVICE_HIP] = {"hipBLASLt", {"libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"}, false, {LT_NUMBERS(HIP_NUMBER)}},
    [DEVICE_CUDA] = {"cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}, true, {LT_NUMBERS(CUDA_NUMBER)}},
};
enum { HIP_OLDEST_VERSION = 800 }; /* 0.8.0; earlier versions number compute types differently */

/* -- What is remembered -------------------------------------------------------------------------------------------- */

/* All properties of a GEMM that an algorithm depends on. Compared as bytes. */
typedef struct ProductShape {
    int64_t m, n, k, lda, ldb, ldc;
    int16_t align_a, align_b, align_c; /* bytes, at most 256 */
    uint8_t transpose_a, transpose_b, accumulate, f32_output, bias, input, scaling_a, scaling_b, zero[2];
} ProductShape;
static_assert(sizeof(ProductShape) == 6 * 8 + 3 * 2 + 10, "Shape has no padding");

/* A GEMM in the library's column-major terms: its D is our C transposed, so its A is our B and its B our A. */
typedef struct Problem { void *operation, *a, *b, *d; } Problem;

typedef struct Solution {
    ProductShape shape;
    Problem problem;
    bool trusted; /* `algorithm` computes this shape; otherwise smelt's kernel does */
    bool decided; /* final: its operands could tell algorithms with different bits apart */
    int tries;
    uint64_t algorithm[ALGORITHM_WORDS];
} Solution;

/* An algorithm of the library, or smelt's kernel, which the cache stores as all ones (not an
 * algorithm of the library). */
typedef struct Proposal {
    uint64_t algorithm[ALGORITHM_WORDS];
    bool smelt;
    int rank; /* in the library's order; smelt's kernel comes last */
    double seconds;
} Proposal;

struct VendorGemm {
    const GemmLibrary *library;
    VendorGemmHost host;
    LtApi call;
    void *file, *handle, *workspace;
    uint16_t *bias; /* BIAS_BYTES of the workspace: the bf16 copy of the bias of the GEMM that runs */
    char name[48];
    AutotuneCache *cache;
    Solution *solutions;
    int solution_count;
};

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool open_gemm_library(VendorGemm *v, Error *error) {
    /* it stays loaded when closed, because its kernels live as long as the GPU's context */
    v->file = library_open(v->library->files, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!v->file) return error_set(error, ERROR_USAGE, "%s was not found", v->library->files[0]);
    const char *missing = library_find(v->file, symbols[device_info(v->host.device)->kind], &v->call);
    return !missing || error_set(error, ERROR_USAGE, "%s has no symbol %s", v->library->files[0], missing);
}

static bool read_version(VendorGemm *v, Error *error) {
    int version = 0;
    void *symbol = dlsym(v->file, v->library->nvidia ? "cublasLtGetVersion" : "hipblasLtGetVersion");
    if (symbol && v->library->nvidia) version = (int)((size_t (*)(void))symbol)();
    else if (symbol && ((int (*)(void *, int *))symbol)(v->handle, &version) != 0) version = 0;
    snprintf(v->name, sizeof v->name, "%s %d", v->library->name, version);
    return v->library->nvidia || version >= HIP_OLDEST_VERSION ||
           error_set(error, ERROR_USAGE, "%s is older than 0.8.0, the version of ROCm 6.2", v->name);
}

VendorGemm *vendor_gemm_open(const VendorGemmHost *host, Error *error) {
    const DeviceInfo *info = device_info(host->device);
    VendorGemm *v = memory_allocate(sizeof *v);
    v->library = &libraries[info->kind];
    v->host = *host;
    bool opened = open_gemm_library(v, error);
    int result = opened ? v->call.create(&v->handle) : 0;
    if (result) opened = error_set(error, ERROR_DEVICE, "%s cannot start: error %d", v->library->name, result);
    opened = opened && read_version(v, error);
    if (opened) v->workspace = device_allocate(host->device, (int64_t)WORKSPACE_BYTES + BIAS_BYTES, error);
    if (!v->workspace) {
        vendor_gemm_close(v);
        return NULL;
    }
    v->bias = (uint16_t *)((char *)v->workspace + WORKSPACE_BYTES);
    v->cache = autotune_cache_open(host->cache_path, info->name, v->name, (size_t)v->library->is.algorithm_bytes);
    return v;
}

static void problem_close(VendorGemm *v, Problem *problem) {
    if (problem->a) v->call.layout_destroy(problem->a);
    if (problem->b) v->call.layout_destroy(problem->b);
    if (problem->d) v->call.layout_destroy(problem->d);
    if (problem->operation) v->call.operation_destroy(problem->operation);
    *problem = (Problem){0};
}

void vendor_gemm_close(VendorGemm *v) {
    if (!v) return;
    for (int i = 0; i < v->solution_count; i++) problem_close(v, &v->solutions[i].problem);
    if (v->workspace) device_free(v->host.device, v->workspace, (int64_t)WORKSPACE_BYTES + BIAS_BYTES);
    if (v->cache) autotune_cache_close(v->cache);
    if (v->handle) v->call.destroy(v->handle);
    if (v->file) dlclose(v->file);
    free(v->solutions);
    free(v);
}

const char *vendor_gemm_name(const VendorGemm *v) { return v->name; }

/* -- Shapes and problems ------------------------------------------------------------------------------------------- */

static int64_t input_bytes(const Gemm *g) { return g->input == GEMM_BF16 ? 2 : 1; }
static int64_t output_bytes(const Gemm *g) { return g->output == GEMM_BF16 ? 2 : 4; }

static int16_t alignment_of(const void *memory) {
    uintptr_t bits = (uintptr_t)memory | 256;
    return (int16_t)(bits & -bits);
}

static ProductShape shape_of(const Gemm *g) {
    return (ProductShape){g->m, g->n, g->k, g->lda, g->ldb, g->ldc, alignment_of(g->a), alignment_of(g->b), alignment_of(g->c),
        g->transpose_a, g->transpose_b, g->accumulate, .f32_output = g->output == GEMM_F32, .bias = g->bias != NULL,
        .input = (uint8_t)g->input, .scaling_a = (uint8_t)g->scaling_a, .scaling_b = (uint8_t)g->scaling_b};
}

static void describe_shape(const ProductShape *s, char text[256]) {
    char input[32] = "";
    if (s->input != GEMM_BF16)
        snprintf(input, sizeof input, "%s scaled=%d,%d>", s->input == GEMM_E5M2 ? "e5m2" : "e4m3", s->scaling_a, s->scaling_b);
    snprintf(text, 256, "%c%c m=%lld n=%lld k=%lld ld=%lld,%lld,%lld aligned=%d,%d,%d %s%s%s%s", s->transpose_a ? 't' : 'n',
        s->transpose_b ? 't' : 'n', (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->lda, (long long)s->ldb,
        (long long)s->ldc, s->align_a, s->align_b, s->align_c, input, s->f32_output ? "fp32" : "bf16", s->accumulate ? "+=" : "",
        s->bias ? " bias" : "");
}

/* Returns whether scales are ONE, of tensors or, for both operands, of lines. */
static bool is_offered_in_fp8(const Gemm *g) {
    bool tensors = g->scaling_a <= GEMM_SCALE_TENSOR && g->scaling_b <= GEMM_SCALE_TENSOR;
    bool lines = g->scaling_a == GEMM_SCALE_LINE && g->scaling_b == GEMM_SCALE_LINE;
    return gemm_is_fp8(g->input) && !g->bias && (tensors || lines);
}

static bool is_offered(const Gemm *g) {
    bool inputs = g->input == GEMM_BF16 || is_offered_in_fp8(g);
    bool types = inputs && (g->output == GEMM_F32 || g->output == GEMM_BF16);
    if (g->bias && g->n * (int64_t)sizeof(uint16_t) > BIAS_BYTES) return false;
    return types && !gpu_gemv_serves(g) && g->m > 0 && g->n > 0 && g->k > 0 && g->m <= INT32_MAX && g->n <= INT32_MAX && g->k <= INT32_MAX;
}

/* Returns whether the bias is passed as a bf16 copy. */
static bool casts_bias(const VendorGemm *v, const Gemm *g) { return g->bias && v->library->nvidia && g->output == GEMM_BF16; }

static bool problem_set(VendorGemm *v, Problem *problem, int attribute, int32_t value) {
    return v->call.operation_set(problem->operation, attribute, &value, sizeof value) == 0;
}

/* Describes a matrix that is stored row by row as rows x columns. */
static bool layout_open(VendorGemm *v, void **layout, int type, int64_t rows, int64_t columns, int64_t leading) {
    return v->call.layout_create(layout, type, (uint64_t)columns, (uint64_t)rows, leading) == 0;
}

static int input_type(const VendorGemm *v, GemmType input) {
    bool fnuz = device_info(v->host.device)->fp8_fnuz;
    if (input == GEMM_E5M2) return fnuz ? TYPE_E5M2_FNUZ : TYPE_E5M2;
    return input == GEMM_BF16 ? TYPE_BF16 : fnuz ? TYPE_E4M3_FNUZ : TYPE_E4M3;
}

/* Without pointers, scales are 1. */
static bool set_scales(VendorGemm *v, const Problem *problem, const Gemm *g) {
    const float *of_a = g->scaling_b ? g->scale_b : NULL, *of_b = g->scaling_a ? g->scale_a : NULL;
    return v->call.operation_set(problem->operation, v->library->is.set_a_scale, &of_a, sizeof of_a) == 0 &&
           v->call.operation_set(problem->operation, v->library->is.set_a_scale + 1, &of_b, sizeof of_b) == 0;
}

/* Selects fast sums for forward products, and precise sums for gradients, which are the products
 * with e5m2. smelt's kernels do the same. */
static bool set_fp8(VendorGemm *v, Problem *problem, const Gemm *g) {
    int8_t fast = g->input == GEMM_E4M3;
    if (v->library->nvidia && v->call.operation_set(problem->operation, NVIDIA_SET_FAST_SUMS, &fast, sizeof fast) != 0) return false;
    if (g->scaling_a == GEMM_SCALE_LINE && (!problem_set(v, problem, SET_A_SCALE_MODE, SCALE_OUTER_VECTOR) ||
                                               !problem_set(v, problem, SET_A_SCALE_MODE + 1, SCALE_OUTER_VECTOR)))
        return false;
    return set_scales(v, problem, g);
}

static bool problem_open(VendorGemm *v, const Gemm *g, Problem *problem) {
    const GemmLibrary *library = v->library;
    int output = g->output == GEMM_BF16 ? TYPE_BF16 : TYPE_F32;
    bool done = v->call.operation_create(&problem->operation, library->is.compute_f32, TYPE_F32) == 0 &&
                problem_set(v, problem, library->is.set_transpose_a, g->transpose_b ? library->is.transposed : library->is.straight) &&
                problem_set(v, problem, library->is.set_transpose_b, g->transpose_a ? library->is.transposed : library->is.straight) &&
                layout_open(v, &problem->a, input_type(v, gemm_is_fp8(g->input) ? GEMM_E4M3 : g->input), g->transpose_b ? g->n : g->k,
                    g->transpose_b ? g->k : g->n, g->ldb) &&
                layout_open(v, &problem->b, input_type(v, g->input), g->transpose_a ? g->k : g->m, g->transpose_a ? g->m : g->k, g->lda) &&
                layout_open(v, &problem->d, output, g->m, g->n, g->ldc);
    if (done && g->bias)
        done = problem_set(v, problem, library->is.set_epilogue, EPILOGUE_BIAS) &&
               problem_set(v, problem, library->is.set_bias_type, casts_bias(v, g) ? TYPE_BF16 : TYPE_F32) &&
               v->call.operation_set(problem->operation, library->is.set_bias, &g->bias, sizeof g->bias) == 0;
    if (done && gemm_is_fp8(g->input)) done = set_fp8(v, problem, g);
    if (!done) problem_close(v, problem);
    return done;
}

/* Returns the library's status, 0 on success. */
static int launch(VendorGemm *v, const Problem *problem, const uint64_t *algorithm, const Gemm *g) {
    static const float zero = 0, one = 1;
    if (g->bias) {
        const void *pointer = g->bias;
        if (casts_bias(v, g)) {
            device_cast_to_bf16(v->host.device, v->bias, g->bias, g->n);
            pointer = v->bias;
        }
        int result = v->call.operation_set(problem->operation, v->library->is.set_bias, &pointer, sizeof pointer);
        if (result) return result;
    }
    if (gemm_is_fp8(g->input) && !set_scales(v, problem, g)) return -1;
    return v->call.multiply(v->handle, problem->operation, &one, g->b, problem->a, g->a, problem->b, g->accumulate ? &one : &zero, g->c,
        problem->d, g->c, problem->d, algorithm, v->workspace, WORKSPACE_BYTES, v->host.stream);
}

/* -- Choosing: race, verification, ban ----------------------------------------------------------------------------- */

/* The first run of a shape chooses what computes it from then on (solve, at the end of the file):
 *   1. propose: the library offers up to MOST_PROPOSALS algorithms; smelt's kernel takes part as
 *      one more, except in fp8.
 *   2. The first of them that is_trusted, in the library's order, sets the bits of this shape. It
 *      must give the same bits when it runs twice, and the rows of smelt's kernel within rounding
 *      on a sample. An algorithm that fails is not used for this shape, with a warning.
 *   3. measure_all times each on the GEMM itself and sorts them. The fastest one with the bits of
 *      step 2 wins: timing affects speed, never results. The autotune cache saves the race if its
 *      algorithm is still offered and has the bits.
 *   4. The winner is remembered, in memory and in the cache. If smelt's kernel wins, or no
 *      algorithm is trusted, vendor_gemm_run declines this shape for the rest of the process.
 * In fp8 smelt's kernel runs only if the library has no trusted algorithm. The few bits of the sums
 * depend on their order, so the two never give the same bits, and a race would choose results. A
 * small C cannot tell algorithms apart: the algorithm of step 2 is final. A C of mostly zeros
 * cannot either: the algorithm of step 2 runs, and the next run tries again. */

/* The GEMM that trials run: the caller's, if running it twice does no harm. If it adds to C, a GEMM
 * that adds to scratch memory instead, with as many rows as fit. Scratch and bias are normal
 * numbers of the size of A B: only then does a library show that it rounds A B before it adds C, or
 * that it rounds the bias; real biases begin as zeros. If there is room, A and B are normal numbers
 * too: the operands of a first step may have sums that are exact in any order. */
typedef struct GemmTrial {
    Gemm gemm;
    Problem problem;
    void *scratch, *offsets, *operands[2]; /* replace C, the bias, A and B; NULL: the caller's is used */
    int64_t scratch_bytes, operand_bytes[2];
    double size; /* standard deviation of their values */
} GemmTrial;

/* The rows of C that are verified: `bands` bands of `rows` rows starting at first[i], at start,
 * middle and end. */
typedef struct GemmSample {
    int bands;
    int64_t first[BANDS], rows;
} GemmSample;

static bool set_preferences(VendorGemm *v, void *preference, const ProductShape *shape) {
    bool done = v->call.preference_set(preference, PREFERENCE_WORKSPACE, &WORKSPACE_BYTES, sizeof WORKSPACE_BYTES) == 0;
    if (!v->library->nvidia) return done;
    uint32_t reduction = NVIDIA_REDUCTION_COMPUTE_TYPE;
    const int16_t alignments[] = {shape->align_b, shape->align_a, shape->align_c, shape->align_c};
    done = done && v->call.preference_set(preference, NVIDIA_PREFERENCE_REDUCTION, &reduction, sizeof reduction) == 0;
    for (int i = 0; i < 4 && done; i++) {
        uint32_t alignment = (uint32_t)alignments[i];
        done = v->call.preference_set(preference, NVIDIA_PREFERENCE_ALIGNMENT + i, &alignment, sizeof alignment) == 0;
    }
    return done;
}

/* A result of the library is its algorithm, then size_t workspace, int status, float waves, int
 * reserved[4]. */
static int propose(VendorGemm *v, const Solution *solution, Proposal proposals[MOST_PROPOSALS + 1]) {
    size_t algorithm_bytes = (size_t)v->library->is.algorithm_bytes, stride = (size_t)v->library->is.result_bytes;
    uint64_t results[MOST_PROPOSALS * (GEMM_ALGORITHM_MOST_BYTES + 32) / 8] = {0};
    const Problem *p = &solution->problem;
    void *preference = NULL;
    int found = 0, count = 0;
    if (v->call.preference_create(&preference) == 0 && set_preferences(v, preference, &solution->shape) &&
        v->call.propose(v->handle, p->operation, p->a, p->b, p->d, p->d, preference, MOST_PROPOSALS, results, &found) != 0)
        found = 0;
    if (preference) v->call.preference_destroy(preference);
    for (int i = 0; i < found && i < MOST_PROPOSALS; i++) {
        const char *result = (const char *)results + i * stride;
        size_t workspace;
        int status;
        memcpy(&workspace, result + algorithm_bytes, sizeof workspace);
        memcpy(&status, result + algorithm_bytes + sizeof workspace, sizeof status);
        if (status != 0 || workspace > WORKSPACE_BYTES) continue;
        proposals[count] = (Proposal){.rank = i};
        memcpy(proposals[count++].algorithm, result, algorithm_bytes);
    }
    if (!v->host.reference_races || gemm_is_fp8(solution->shape.input)) return count;
    proposals[count] = (Proposal){.smelt = true, .rank = MOST_PROPOSALS};
    memset(proposals[count++].algorithm, 0xff, algorithm_bytes);
    return count;
}

static int run_once(VendorGemm *v, const GemmTrial *trial, const Proposal *proposal) {
    if (!proposal->smelt) return launch(v, &trial->problem, proposal->algorithm, &trial->gemm);
    v->host.reference(v->host.device, &trial->gemm);
    return 0;
}

/* Returns the seconds of one run, the median of three; infinite if it fails. Runs shorter than 100
 * us are repeated. An algorithm whose first run is over 10% and 100 us slower than `best` is not
 * measured again. */
static double time_proposal(VendorGemm *v, const GemmTrial *trial, const Proposal *proposal, double best) {
    enum { RUNS = 3, MOST_REPEATS = 20 };
    const double enough = 100e-6;
    double times[RUNS];
    int repeats = 1;
    if (run_once(v, trial, proposal) != 0) return INFINITY;
    for (int run = 0; run < RUNS; run++) {
        device_timer_start(v->host.device);
        for (int i = 0; i < repeats; i++) run_once(v, trial, proposal);
        times[run] = device_timer_stop(v->host.device) / repeats;
        if (run == 0 && times[0] > 1.1 * best + enough) return times[0];
        if (run == 0) repeats = times[0] * MOST_REPEATS < enough ? MOST_REPEATS : times[0] < enough ? (int)(enough / times[0]) + 1 : 1;
    }
    return sort_median(times, RUNS);
}

static int compare_proposals(const void *a, const void *b) {
    const Proposal *x = a, *y = b;
    return x->seconds != y->seconds ? compare_doubles(&x->seconds, &y->seconds) : x->rank - y->rank;
}

/* Times all proposals and sorts them, fastest first. Proposals within 3% of the best count as
 * equal and stay in the library's order, so that noise seldom decides. */
static void time_proposals(VendorGemm *v, const GemmTrial *trial, Proposal *proposals, int count) {
    double best = INFINITY;
    for (int i = 0; i < count; i++) {
        proposals[i].seconds = time_proposal(v, trial, &proposals[i], best);
        if (proposals[i].seconds < best) best = proposals[i].seconds;
    }
    for (int i = 0; i < count; i++)
        if (proposals[i].seconds < 1.03 * best) proposals[i].seconds = best;
    qsort(proposals, (size_t)count, sizeof *proposals, compare_proposals);
}

/* -- Verifying ----------------------------------------------------------------------------------------------------- */

static GemmSample gemm_sample(const Gemm *g, int64_t band_rows) {
    if (g->m <= BANDS * band_rows) return (GemmSample){.bands = 1, .rows = g->m};
    GemmSample sample = {.bands = BANDS, .rows = band_rows};
    for (int i = 0; i < BANDS; i++) sample.first[i] = (g->m - band_rows) / BAND_ROWS * i / (BANDS - 1) * BAND_ROWS;
    sample.first[BANDS - 1] = g->m - band_rows;
    return sample;
}

/* Returns the sample on which algorithms are compared bit by bit. Sums in another order differ by
 * an ulp of fp32; after rounding to bf16 about one element in 30,000 shows it, so millions are
 * compared. */
static GemmSample sample_of_bits(const Gemm *g) {
    const int64_t elements = 16 << 20;
    return gemm_sample(g, int_max(elements / BANDS / g->n / BAND_ROWS * BAND_ROWS, BAND_ROWS));
}

static int64_t band_bytes(const Gemm *g, const GemmSample *sample) { return ((sample->rows - 1) * g->ldc + g->n) * output_bytes(g); }

static void start_scratch(VendorGemm *v, const GemmTrial *trial) {
    const Gemm *g = &trial->gemm;
    if (!g->accumulate) return;
    device_normals(v->host.device, trial->scratch, (int)output_bytes(g), &(Slice){.count = trial->scratch_bytes / output_bytes(g)},
        &(Normals){.deviation = trial->size});
}

/* Computes C by a proposal and returns the sample's rows, band after band. NULL on failure. The
 * caller frees the rows. */
static char *sampled_rows(VendorGemm *v, const GemmTrial *trial, const GemmSample *sample, const Proposal *proposal) {
    const Gemm *g = &trial->gemm;
    start_scratch(v, trial);
    if (run_once(v, trial, proposal) != 0) return NULL;
    int64_t bytes = band_bytes(g, sample);
    char *rows = memory_allocate((size_t)(sample->bands * bytes));
    for (int i = 0; i < sample->bands; i++)
        device_download(v->host.device, rows + i * bytes, (const char *)g->c + sample->first[i] * g->ldc * output_bytes(g), bytes);
    return rows;
}

/* Computes C by smelt's kernel and returns the sample's rows, band after band. NULL if memory or
 * a kernel is missing. The caller frees the rows. */
static char *reference_rows(VendorGemm *v, const GemmTrial *trial, const GemmSample *sample) {
    Error error;
    const Gemm *g = &trial->gemm;
    int64_t bytes = band_bytes(g, sample);
    void *c = bytes <= BAND_BYTES ? device_allocate(v->host.device, bytes, &error) : NULL;
    char *rows = c ? memory_allocate((size_t)(sample->bands * bytes)) : NULL;
    start_scratch(v, trial);
    for (int i = 0; i < sample->bands && rows; i++) {
        Gemm band = *g;
        band.m = sample->rows;
        band.a = (const char *)g->a + sample->first[i] * (g->transpose_a ? 1 : g->lda) * input_bytes(g);
        if (g->scaling_a == GEMM_SCALE_LINE) band.scale_a = g->scale_a + sample->first[i];
        band.c = c;
        if (g->accumulate) device_copy(v->host.device, c, (const char *)g->c + sample->first[i] * g->ldc * output_bytes(g), bytes);
        if (v->host.reference(v->host.device, &band)) {
            device_download(v->host.device, rows + i * bytes, c, bytes);
        } else {
            free(rows);
            rows = NULL;
        }
    }
    if (c) device_free(v->host.device, c, bytes);
    return rows;
}

/* Returns the root mean square of the finite elements of the rows. */
static double rows_size(const Gemm *g, const GemmSample *sample, const char *rows) {
    const size_t bytes = (size_t)output_bytes(g);
    double squares = 0;
    for (int band = 0; band < sample->bands; band++, rows += band_bytes(g, sample))
        for (int64_t i = 0; i < sample->rows * g->n; i++) {
            double x = element_get(bytes, rows, i / g->n * g->ldc + i % g->n);
            if (isfinite(x)) squares += x * x;
        }
    return sqrt(squares / (double)(sample->bands * sample->rows * g->n));
}

/* Two fp32 sums of the same terms in different orders, rounded to bf16, differ by an ulp (1/128) of
 * an element or, if terms cancel, by a small part of the band's root mean square. Twice this is
 * allowed; a wrong element is off by about the root mean square. Elements that are not finite in
 * the reference are not compared. */
static bool rows_agree(const Gemm *g, const GemmSample *sample, const char *rows, const char *reference, char why[128]) {
    const double tolerance = 1.0 / 64;
    const size_t bytes = (size_t)output_bytes(g);
    for (int band = 0; band < sample->bands; band++, rows += band_bytes(g, sample), reference += band_bytes(g, sample)) {
        double size = rows_size(g, &(GemmSample){.bands = 1, .rows = sample->rows}, reference);
        for (int64_t i = 0; i < sample->rows * g->n; i++) {
            int64_t at = i / g->n * g->ldc + i % g->n;
            double x = element_get(bytes, rows, at), expected = element_get(bytes, reference, at);
            if (!isfinite(expected) || fabs(x - expected) <= tolerance * (fabs(expected) + size)) continue;
            snprintf(why, 128, "row %lld column %lld is %g instead of %g", (long long)(sample->first[band] + i / g->n),
                (long long)(i % g->n), x, expected);
            return false;
        }
    }
    return true;
}

static void trial_close(VendorGemm *v, GemmTrial *trial) {
    if (trial->gemm.accumulate) problem_close(v, &trial->problem);
    if (trial->scratch) device_free(v->host.device, trial->scratch, trial->scratch_bytes);
    if (trial->offsets) device_free(v->host.device, trial->offsets, trial->gemm.n * (int64_t)sizeof(float));
    for (int i = 0; i < 2; i++)
        if (trial->operands[i]) device_free(v->host.device, trial->operands[i], trial->operand_bytes[i]);
}

static bool open_operands(VendorGemm *v, GemmTrial *trial) {
    Error error;
    Gemm *g = &trial->gemm;
    const int64_t bytes[2] = {(g->transpose_a ? g->k : g->m) * g->lda * 2, (g->transpose_b ? g->n : g->k) * g->ldb * 2};
    if (g->input != GEMM_BF16 || bytes[0] + bytes[1] > OPERAND_BYTES) return true;
    for (int i = 0; i < 2; i++) {
        trial->operand_bytes[i] = bytes[i];
        trial->operands[i] = device_allocate(v->host.device, bytes[i], &error);
        if (!trial->operands[i]) return false;
        device_normals(
            v->host.device, trial->operands[i], 2, &(Slice){.count = bytes[i] / 2}, &(Normals){.stream = 2 + (uint64_t)i, .deviation = 1});
    }
    g->a = trial->operands[0];
    g->b = trial->operands[1];
    return true;
}

static bool open_scratch(VendorGemm *v, GemmTrial *trial) {
    Error error;
    Gemm *g = &trial->gemm;
    int64_t row = g->ldc * output_bytes(g);
    g->m = int_min(g->m, SCRATCH_BYTES / row);
    if (g->m <= 0) return false;
    trial->scratch_bytes = g->m * row;
    trial->scratch = g->c = device_allocate(v->host.device, trial->scratch_bytes, &error);
    return trial->scratch && problem_open(v, g, &trial->problem);
}

static bool open_offsets(VendorGemm *v, GemmTrial *trial) {
    Error error;
    int64_t bytes = trial->gemm.n * (int64_t)sizeof(float);
    trial->offsets = device_allocate(v->host.device, bytes, &error);
    if (trial->offsets) device_fill(v->host.device, trial->offsets, 0, bytes);
    trial->gemm.bias = trial->offsets;
    return trial->offsets;
}

/* Sets `size` to that of A B, computed without scratch and bias, and fills the bias with values of
 * this size. */
static bool set_size(VendorGemm *v, GemmTrial *trial) {
    const Gemm *g = &trial->gemm;
    GemmSample sample = gemm_sample(g, BAND_ROWS);
    SCOPED_FREE char *rows = reference_rows(v, trial, &sample);
    if (!rows) return false;
    trial->size = rows_size(g, &sample, rows);
    if (trial->offsets)
        device_normals(
            v->host.device, trial->offsets, sizeof(float), &(Slice){.count = g->n}, &(Normals){.stream = 1, .deviation = trial->size});
    return true;
}

static bool trial_open(VendorGemm *v, const Solution *solution, const Gemm *gemm, GemmTrial *trial) {
    *trial = (GemmTrial){.gemm = *gemm, .problem = gemm->accumulate ? (Problem){0} : solution->problem};
    return open_operands(v, trial) && (!gemm->accumulate || open_scratch(v, trial)) && (!gemm->bias || open_offsets(v, trial)) &&
           ((!gemm->accumulate && !gemm->bias) || set_size(v, trial));
}

static bool verify(VendorGemm *v, const GemmTrial *trial, const Proposal *proposal, char why[128]) {
    GemmSample sample = gemm_sample(&trial->gemm, BAND_ROWS);
    SCOPED_FREE char *rows = sampled_rows(v, trial, &sample, proposal), *again = sampled_rows(v, trial, &sample, proposal);
    snprintf(why, 128, "it does not run");
    if (!rows || !again) return false;
    snprintf(why, 128, "its results differ from run to run");
    if (memcmp(rows, again, (size_t)(sample.bands * band_bytes(&trial->gemm, &sample)))) return false;
    snprintf(why, 128, "smelt has no kernel, or no memory, to check it");
    SCOPED_FREE char *reference = reference_rows(v, trial, &sample);
    return reference && rows_agree(&trial->gemm, &sample, rows, reference, why);
}

/* Returns whether the algorithm may be used; warns if not. A failure of the device proves
 * nothing. */
static bool is_trusted(VendorGemm *v, const GemmTrial *trial, const Proposal *proposal, const char *shape) {
    char why[128];
    Error error;
    bool good = proposal->smelt || verify(v, trial, proposal, why);
    if (!device_ok(v->host.device, &error)) return false;
    if (!good) log_warn("%s: not using algorithm %016llx for %s: %s", v->name, (unsigned long long)proposal->algorithm[0], shape, why);
    return good;
}

/* Returns whether algorithms with other bits would show it: at least a quarter of C is not zero. */
static bool tells(VendorGemm *v, const GemmTrial *trial, const Proposal *proposal) {
    const Gemm *g = &trial->gemm;
    GemmSample sample = gemm_sample(g, BAND_ROWS);
    SCOPED_FREE char *rows = sampled_rows(v, trial, &sample, proposal);
    int64_t count = 0;
    for (int band = 0; rows && band < sample.bands; band++)
        for (int64_t i = 0; i < sample.rows * g->n; i++)
            count += element_get((size_t)output_bytes(g), rows + band * band_bytes(g, &sample), i / g->n * g->ldc + i % g->n) != 0;
    return 4 * count >= sample.bands * sample.rows * g->n;
}

/* Returns whether C is large enough to tell algorithms apart by their bits (sample_of_bits); only
 * then is a race worthwhile. */
static bool is_raced(const Gemm *g) {
    const int64_t enough = 2 << 20, as_bf16 = g->output == GEMM_BF16 ? 1 : 256;
    return g->m * g->n * as_bf16 >= enough;
}

static bool has_bits(VendorGemm *v, const GemmTrial *trial, const Proposal *proposal, const char *bits) {
    GemmSample sample = sample_of_bits(&trial->gemm);
    SCOPED_FREE char *rows = sampled_rows(v, trial, &sample, proposal);
    return rows && !memcmp(rows, bits, (size_t)(sample.bands * band_bytes(&trial->gemm, &sample)));
}

/* Returns the remembered algorithm if the library still proposes it, or NULL. */
static const Proposal *find_remembered(VendorGemm *v, const Proposal *proposals, int count, const char *shape) {
    uint64_t algorithm[ALGORITHM_WORDS] = {0};
    if (!autotune_cache_find(v->cache, shape, algorithm)) return NULL;
    for (int i = 0; i < count; i++)
        if (!memcmp(proposals[i].algorithm, algorithm, sizeof algorithm)) return &proposals[i];
    return NULL;
}

/* Chooses what computes the shape; NULL: no proposal is trusted. Sets *decided if the choice is
 * final. */
static const Proposal *choose_solution(
    VendorGemm *v, const GemmTrial *trial, Proposal *proposals, int count, const char *shape, bool *decided) {
    GemmSample sample = sample_of_bits(&trial->gemm);
    int first = 0;
    while (first < count && !is_trusted(v, trial, &proposals[first], shape)) first++;
    bool raced = is_raced(&trial->gemm);
    *decided = first == count || !raced || tells(v, trial, &proposals[first]);
    if (first == count) return NULL;
    if (!raced || !*decided) return &proposals[first];
    SCOPED_FREE char *bits = sampled_rows(v, trial, &sample, &proposals[first]);
    const Proposal *remembered = bits ? find_remembered(v, proposals, count, shape) : NULL;
    if (remembered && is_trusted(v, trial, remembered, shape) && has_bits(v, trial, remembered, bits)) return remembered;
    time_proposals(v, trial, proposals, count);
    for (int i = 0; bits && i < count && proposals[i].seconds < INFINITY; i++)
        if (is_trusted(v, trial, &proposals[i], shape) && has_bits(v, trial, &proposals[i], bits)) {
            autotune_cache_add(v->cache, shape, proposals[i].algorithm);
            return &proposals[i];
        }
    return NULL;
}

/* -- Running ------------------------------------------------------------------------------------------------------- */

static Solution *find_solution(VendorGemm *v, const ProductShape *shape) {
    for (int i = 0; i < v->solution_count; i++)
        if (!memcmp(&v->solutions[i].shape, shape, sizeof *shape)) return &v->solutions[i];
    return NULL;
}

static Solution *add_solution(VendorGemm *v, const Gemm *gemm, const ProductShape *shape) {
    array_append(v->solutions, v->solution_count, (Solution){.shape = *shape});
    Solution *solution = &v->solutions[v->solution_count - 1];
    solution->decided = !problem_open(v, gemm, &solution->problem); /* declined */
    return solution;
}

/* Chooses what computes a shape from now on. C is unchanged with `accumulate`; otherwise its
 * content is undefined. */
static void solve(VendorGemm *v, const Gemm *gemm, Solution *solution) {
    Proposal proposals[MOST_PROPOSALS + 1];
    GemmTrial trial = {0};
    char text[256];
    describe_shape(&solution->shape, text);
    int count = propose(v, solution, proposals);
    solution->decided = true;
    if (trial_open(v, solution, gemm, &trial)) {
        const Proposal *choice = choose_solution(v, &trial, proposals, count, text, &solution->decided);
        solution->trusted = choice && !choice->smelt;
        if (choice) memcpy(solution->algorithm, choice->algorithm, sizeof solution->algorithm);
    } else
        log_warn("%s: cannot compare algorithms for %s (too little device memory, or no reference): the library is not used for it",
            v->name, text);
    solution->decided |= ++solution->tries == MOST_TRIES;
    trial_close(v, &trial);
}

bool vendor_gemm_run(VendorGemm *v, const Gemm *gemm, bool recording) {
    if (!is_offered(gemm)) return false;
    ProductShape shape = shape_of(gemm);
    Solution *solution = find_solution(v, &shape);
    if (!solution && !recording) solution = add_solution(v, gemm, &shape);
    if (solution && !solution->decided && !recording) solve(v, gemm, solution);
    return solution && solution->trusted && launch(v, &solution->problem, solution->algorithm, gemm) == 0;
}
