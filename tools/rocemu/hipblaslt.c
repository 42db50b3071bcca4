/* A libhipblaslt.so over the emulated card, so that the code that calls AMD's library of GEMMs runs where there is none:
 * the functions that smelt calls, with their real signatures, numbers and structs (vendor_gemm_calls_internal.h, which
 * tools/check-headers compares with hipblaslt.h). Matrices are stored by columns. Every GEMM runs on the host when the
 * stream reaches it, also when a captured graph is replayed.
 *
 * Two algorithms are proposed, which differ in the order of a sum, so that the choice between them shows in the bits.
 * ROCEMU_GEMM=wrong makes the first add a product twice, and ROCEMU_GEMM=none proposes nothing.
 *
 * Owns the objects behind its handles until their Destroy; the calls of a captured stream live as long as the handle. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/vendor_gemm_calls_internal.h"
#include "base/bf16.h"
#include "base/float8.h"

#define EXPORT __attribute__((visibility("default")))
#define PROTOTYPE(name, symbol, arguments) EXPORT int hipblasLt##symbol arguments;
LT_API(PROTOTYPE)
EXPORT int hipblasLtGetVersion(void *handle, int *version);

/* Of libamdhip64: runs the function when the stream reaches it. */
int hipLaunchHostFunc(void *stream, void (*run)(void *), void *data);
int hipStreamIsCapturing(void *stream, int *status);

enum { STATUS_NOT_INITIALIZED = 1, STATUS_INVALID_VALUE = 3, STATUS_NOT_SUPPORTED = 7, VERSION = 1200 }; /* hipblasStatus_t */
#define NUMBER(name, hip, hip_name, cuda, cuda_name) name = hip,
enum { LT_NUMBERS(NUMBER) };

typedef struct Layout {
    int type;
    int64_t rows, columns, leading;
} Layout;

typedef struct Operation {
    bool transpose_a, transpose_b, lines_a, lines_b;
    int epilogue, bias_type;
    const void *bias;
    const float *scale_a, *scale_b;
} Operation;

typedef struct Call {
    struct Call *next; /* in the handle's list */
    Operation operation;
    Layout a_layout, b_layout, d_layout;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
    int order;
} Call;

typedef struct Handle { Call *captured; } Handle;

/* hipblasLtMatmulAlgo_t and hipblasLtMatmulHeuristicResult_t */
typedef struct Algorithm {
    uint64_t order, zero;
    size_t workspace;
} Algorithm;
typedef struct Result {
    Algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} Result;
_Static_assert(sizeof(Algorithm) == algorithm_bytes && sizeof(Result) == result_bytes, "the library's structs");

/* -- Elements ------------------------------------------------------------------------------------------------------ */

static Fp8Format format_of(int type) {
    bool fnuz = type == TYPE_E4M3_FNUZ || type == TYPE_E5M2_FNUZ;
    return fp8_format(type == TYPE_E5M2 || type == TYPE_E5M2_FNUZ ? FP8_E5M2 : FP8_E4M3, fnuz);
}

static bool is_known(int type) {
    static const int known[] = {TYPE_F32, TYPE_BF16, TYPE_E4M3, TYPE_E5M2, TYPE_E4M3_FNUZ, TYPE_E5M2_FNUZ};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i] == type) return true;
    return false;
}

static float element(const void *data, int type, int64_t i) {
    if (type == TYPE_F32) return ((const float *)data)[i];
    if (type == TYPE_BF16) return bf16_to_float(((const uint16_t *)data)[i]);
    return fp8_to_float(((const uint8_t *)data)[i], format_of(type));
}

static void put(void *data, int type, int64_t i, float value) {
    if (type == TYPE_F32) ((float *)data)[i] = value;
    else ((uint16_t *)data)[i] = bf16_from_float(value);
}

/* The matrix op(X) as floats, rows x columns of it, row by row. */
static float *unpack(const void *data, const Layout *layout, bool transpose) {
    int64_t rows = transpose ? layout->columns : layout->rows, columns = transpose ? layout->rows : layout->columns;
    float *values = malloc((size_t)(rows * columns) * sizeof *values);
    for (int64_t i = 0; values && i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            values[i * columns + j] = element(data, layout->type, transpose ? j + i * layout->leading : i + j * layout->leading);
    return values;
}

/* -- GEMM ---------------------------------------------------------------------------------------------------------- */

static float scale_at(const float *scale, bool lines, int64_t i) { return scale ? scale[lines ? i : 0] : 1; }

/* sum over k of a[k] b[k stride], from the front or from the back. */
static float dot(const float *a, const float *b, int64_t count, int64_t stride, int order) {
    float sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t k = order == 1 ? count - 1 - i : i;
        sum += a[k] * b[k * stride];
    }
    return order == 2 ? sum + a[0] * b[0] : sum;
}

static void run(void *data) {
    const Call *call = data;
    const Operation *o = &call->operation;
    int64_t m = call->d_layout.rows, n = call->d_layout.columns, k = o->transpose_a ? call->a_layout.rows : call->a_layout.columns;
    float *a = unpack(call->a, &call->a_layout, o->transpose_a), *b = unpack(call->b, &call->b_layout, o->transpose_b);
    for (int64_t j = 0; a && b && j < n; j++)
        for (int64_t i = 0; i < m; i++) {
            int64_t at = i + j * call->d_layout.leading;
            float sum =
                dot(a + i * k, b + j, k, n, call->order) * scale_at(o->scale_a, o->lines_a, i) * scale_at(o->scale_b, o->lines_b, j);
            float value = call->alpha * sum + (call->beta != 0 ? call->beta * element(call->c, call->d_layout.type, at) : 0);
            if (o->epilogue == EPILOGUE_BIAS) value += element(o->bias, o->bias_type, i);
            put(call->d, call->d_layout.type, at, value);
        }
    free(a);
    free(b);
}

int hipblasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, void *layout_a, const void *b, void *layout_b,
    const void *beta, const void *c, void *layout_c, void *d, void *layout_d, const void *algorithm, void *workspace,
    size_t workspace_bytes, void *stream) {
    (void)layout_c, (void)workspace, (void)workspace_bytes;
    int capturing = 0;
    if (!handle || !operation || !a || !b || !d || !algorithm) return STATUS_INVALID_VALUE;
    Call *call = calloc(1, sizeof *call);
    *call = (Call){NULL, *(Operation *)operation, *(Layout *)layout_a, *(Layout *)layout_b, *(Layout *)layout_d, a, b, c, d,
        *(const float *)alpha, *(const float *)beta, (int)((const Algorithm *)algorithm)->order};
    hipStreamIsCapturing(stream, &capturing);
    int failed = hipLaunchHostFunc(stream, run, call);
    if (!capturing) {
        free(call);
        return failed ? STATUS_INVALID_VALUE : 0;
    }
    call->next = ((Handle *)handle)->captured;
    ((Handle *)handle)->captured = call;
    return failed ? STATUS_INVALID_VALUE : 0;
}

int hipblasLtMatmulAlgoGetHeuristic(
    void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most, void *results, int *count) {
    const Operation *o = operation;
    const Layout *layout_a = a, *layout_b = b, *layout_d = d;
    const char *mode = getenv("ROCEMU_GEMM");
    if (!handle || !preference || !c || most < 1) return STATUS_INVALID_VALUE;
    int64_t k_a = o->transpose_a ? layout_a->rows : layout_a->columns, k_b = o->transpose_b ? layout_b->columns : layout_b->rows;
    if (k_a != k_b || layout_a->leading < layout_a->rows || layout_b->leading < layout_b->rows || layout_d->leading < layout_d->rows)
        return STATUS_INVALID_VALUE;
    *count = 0;
    if (mode && !strcmp(mode, "none")) return STATUS_NOT_SUPPORTED;
    for (; *count < 2 && *count < most; ++*count)
        ((Result *)results)[*count] =
            (Result){.algorithm.order = *count == 0 && mode && !strcmp(mode, "wrong") ? 2 : (uint64_t)*count, .waves = 1};
    return 0;
}

/* -- Handles and descriptors --------------------------------------------------------------------------------------- */

static int make(void **object, const void *start, size_t bytes) {
    if (!object) return STATUS_INVALID_VALUE;
    *object = malloc(bytes);
    if (!*object) return STATUS_NOT_INITIALIZED;
    memcpy(*object, start, bytes);
    return 0;
}
static int drop(void *object) {
    free(object);
    return object ? 0 : STATUS_INVALID_VALUE;
}

int hipblasLtCreate(void **handle) { return make(handle, &(Handle){0}, sizeof(Handle)); }
int hipblasLtDestroy(void *handle) {
    for (Call *call = handle ? ((Handle *)handle)->captured : NULL, *next; call; call = next) {
        next = call->next;
        free(call);
    }
    return drop(handle);
}
int hipblasLtGetVersion(void *handle, int *version) {
    *version = VERSION;
    return handle ? 0 : STATUS_INVALID_VALUE;
}

int hipblasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    if (!is_known(type)) return STATUS_NOT_SUPPORTED;
    return make(layout, &(Layout){type, (int64_t)rows, (int64_t)columns, leading}, sizeof(Layout));
}
int hipblasLtMatrixLayoutDestroy(void *layout) { return drop(layout); }

int hipblasLtMatmulPreferenceCreate(void **preference) { return make(preference, &(uint64_t){0}, sizeof(uint64_t)); }
int hipblasLtMatmulPreferenceDestroy(void *preference) { return drop(preference); }
int hipblasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    if (!preference || attribute != PREFERENCE_WORKSPACE || bytes != sizeof(uint64_t)) return STATUS_INVALID_VALUE;
    memcpy(preference, value, bytes);
    return 0;
}

int hipblasLtMatmulDescCreate(void **operation, int compute_type, int scale_type) {
    if (compute_type != compute_f32 || scale_type != TYPE_F32) return STATUS_NOT_SUPPORTED;
    return make(operation, &(Operation){.bias_type = TYPE_F32}, sizeof(Operation));
}
int hipblasLtMatmulDescDestroy(void *operation) { return drop(operation); }

static bool set_transpose(bool *transpose, int32_t value) {
    *transpose = value == transposed;
    return value == transposed || value == straight;
}

int hipblasLtMatmulDescSetAttribute(void *operation, int attribute, const void *value, size_t bytes) {
    Operation *o = operation;
    int32_t number = 0;
    const void *pointer = NULL;
    bool points = attribute == set_bias || attribute == set_a_scale || attribute == set_a_scale + 1, done = true;
    if (!o || bytes != (points ? sizeof pointer : sizeof number)) return STATUS_INVALID_VALUE;
    memcpy(points ? (void *)&pointer : &number, value, bytes);
    switch (attribute) {
    case set_transpose_a: done = set_transpose(&o->transpose_a, number); break;
    case set_transpose_b: done = set_transpose(&o->transpose_b, number); break;
    case set_epilogue: o->epilogue = number; break;
    case set_bias_type: o->bias_type = number; break;
    case set_bias: o->bias = pointer; break;
    case set_a_scale: o->scale_a = pointer; break;
    case set_a_scale + 1: o->scale_b = pointer; break;
    case SET_A_SCALE_MODE: o->lines_a = number == SCALE_OUTER_VECTOR; break;
    case SET_A_SCALE_MODE + 1: o->lines_b = number == SCALE_OUTER_VECTOR; break;
    default: done = false;
    }
    return done ? 0 : STATUS_INVALID_VALUE;
}
