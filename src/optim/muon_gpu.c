/* Muon's step on a GPU: the matrices of a group have one shape and lie at one distance in scratch, so that a GEMM of the iteration is one launch
 * for all of them, and the symmetric ones are computed on and below the diagonal alone (backend/gpu/gpu_gemm.c):
 *     gram = X X^T        square = c gram gram + b gram + a I        Y = square X
 * or with the factors of the last one exchanged for a tall X and gram = X^T X. The last one, over half of all work, is left to the vendor's library
 * where one matrix keeps the GPU busy. Owns no memory; called by muon_step. */
#include "backend/gpu/gpu_gemm.h"
#include "optim/optim_internal.h"

/* What all GEMMs of a group have in common; scratch of the group's first matrix. */
typedef struct Products {
    Device *device;
    const Matrix *matrix;
    bool busy;             /* each matrix by itself keeps the GPU so */
    int64_t count, stride; /* of matrices; from one to the next, in elements of bf16 */
    bf16 *x, *y, *gram, *square;
} Products;

static Products products_of(const Optimizer *o, int first, int end) {
    const Matrix *m = &o->matrices[first];
    return (Products){
        .device = o->device,
        .matrix = m,
        .busy = m->rows * m->columns >= o->busy,
        .count = end - first,
        .stride = end - first > 1 ? (m[1].x - m[0].x) / (int64_t)sizeof(bf16) : 0,
        .x = optim_at(o->scratch, m->x, 1),
        .y = optim_at(o->scratch, m->y, 1),
        .gram = optim_at(o->scratch, m->gram, 1),
        .square = optim_at(o->scratch, m->square, 1),
    };
}

/* c = alpha a b + beta d for every matrix of the group. */
static void multiply(const Products *p, const Gemm *first, bool symmetric, double alpha, double beta, const bf16 *d) {
    GemmBatch batch = {.first = *first,
        .count = p->count,
        .stride_a = p->stride,
        .stride_b = p->stride,
        .stride_c = p->stride,
        .alpha = alpha,
        .beta = beta,
        .d = d,
        .symmetric = symmetric};
    gpu_gemm_batch(p->device, &batch);
}

static void multiply_gram(const Products *p) {
    int64_t rows = p->matrix->rows, columns = p->matrix->columns, order = p->matrix->order;
    bool tall = rows > columns;
    Gemm gram = {.transpose_a = tall,
        .transpose_b = !tall,
        .input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = order,
        .n = order,
        .k = tall ? rows : columns,
        .a = p->x,
        .lda = columns,
        .b = p->x,
        .ldb = columns,
        .c = p->gram,
        .ldc = order};
    multiply(p, &gram, true, 1, 0, NULL);
}

static void multiply_square(const Products *p) {
    int64_t order = p->matrix->order;
    Gemm square = {.input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = order,
        .n = order,
        .k = order,
        .a = p->gram,
        .lda = order,
        .b = p->gram,
        .ldb = order,
        .c = p->square,
        .ldc = order};
    multiply(p, &square, true, NEWTON_SCHULZ_C, NEWTON_SCHULZ_B, p->gram);
    gpu_muon_add_identity(p->device, p->gram, p->square, order, p->count, p->stride, NEWTON_SCHULZ_A, NEWTON_SCHULZ_B, NEWTON_SCHULZ_C);
}

/* x becomes y. */
static void multiply_update(Products *p) {
    int64_t rows = p->matrix->rows, columns = p->matrix->columns, order = p->matrix->order;
    bool tall = rows > columns;
    bf16 *a = tall ? p->x : p->square, *b = tall ? p->square : p->x, *c = p->y;
    Gemm update = {.input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = rows,
        .n = columns,
        .k = order,
        .a = a,
        .lda = order,
        .b = b,
        .ldb = columns,
        .c = c,
        .ldc = columns};
    if (p->busy) {
        for (int64_t i = 0; i < p->count; i++, a += p->stride, b += p->stride, c += p->stride) {
            update.a = a, update.b = b, update.c = c;
            device_gemm(p->device, &update);
        }
    } else {
        multiply(p, &update, false, 1, 0, NULL);
    }
    bf16 *x = p->x;
    p->x = p->y;
    p->y = x;
}

void muon_step_group_gpu(const Optimizer *optimizer, const Segment *segment, int first, int end, const Update *update) {
    const Matrix *m = &optimizer->matrices[first];
    Products products = products_of(optimizer, first, end);
    MuonGroup group = {
        .arenas = optim_arenas(optimizer, segment, update),
        .chunks = optimizer->device_chunks + m->first_chunk,
        .partials = optimizer->partials,
        .norms = optimizer->norms,
        .x = products.x,
        .stride = products.stride,
        .matrices = products.count,
        .chunks_each = m->end_chunk - m->first_chunk,
        .first_matrix = first,
        .momentum = (float)optimizer->config.momentum,
        .scale = (float)update->scale,
        .keep = (float)(1 - update->lr * optimizer->config.weight_decay),
        .rate = (float)muon_rate(m, update->lr),
    };
    gpu_muon_load(optimizer->device, &group);
    for (int64_t i = 0; i < optimizer->config.newton_schulz_steps; i++) {
        multiply_gram(&products);
        multiply_square(&products);
        multiply_update(&products);
    }
    group.x = products.x;
    gpu_muon_apply(optimizer->device, &group);
}
