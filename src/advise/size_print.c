/* Prints a sizing: findings, the GEMMs with their tiles, better neighbors, widths of experts. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "model/model.h"
#include "graph/op.h"
#include "advise/fp8_print_internal.h"
#include "advise/size.h"

/* -- Findings ------------------------------------------------------------------------------------------------------ */

static void print_findings(const Sizing *sizing, FILE *file) {
    static const char *const words[] = {"ok", "note", "FAULT"};
    for (int i = 0; i < sizing->count; i++) {
        const Finding *finding = &sizing->findings[i];
        fprintf(file, "%-6s %-18s %8lld  %s", words[finding->verdict], finding->dimension, (long long)finding->value, finding->text);
        if (finding->cost > 0) fprintf(file, " (fixed: %.1f%% less time per active parameter)", 100 * finding->cost);
        fprintf(file, "\n");
    }
}

/* -- GEMMs ------------------------------------------------------------------------------------------------------ */

typedef struct SizeRow {
    const char *name;
    GemmShape shape;
    int calls;
    double seconds;
    bool fp8;
} SizeRow;

static bool same_shape(const GemmShape *a, const GemmShape *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->count == b->count;
}

static int by_bytes(const void *a, const void *b) {
    const SizeRow *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static int collect_rows(SizeRow *rows, const Graph *graph, const SizeQuestion *question) {
    int count = 0;
    for (int i = 0; i < graph->node_count; i++) {
        Work work = work_of_node(graph, &graph->nodes[i]);
        if (work.class > WORK_EXPERT_WEIGHTS) continue;
        int at = 0;
        while (at < count && !(same_shape(&rows[at].shape, &work.gemm) && !strcmp(rows[at].name, op_table[graph->nodes[i].op]->name))) at++;
        if (at == count) rows[count++] = (SizeRow){.name = op_table[graph->nodes[i].op]->name, .shape = work.gemm, .fp8 = work.fp8};
        rows[at].calls++;
        rows[at].seconds += work_seconds(&work, &question->hardware, question->measured);
    }
    qsort(rows, (size_t)count, sizeof *rows, by_bytes);
    return count;
}

static void print_size_row(const SizeRow *row, const SizeQuestion *question, double total, FILE *file) {
    const GemmShape *p = &row->shape;
    GemmFit fit = gemm_fit(p, &question->hardware);
    const MeasuredGemm *near =
        question->measured && p->count == 1 && !row->fp8 ? measured_find(question->measured, p->m, p->n, p->k) : NULL;
    char batch[24] = "", shape[96];
    if (p->count > 1) snprintf(batch, sizeof batch, "%lld:", (long long)p->count);
    snprintf(shape, sizeof shape, "%s%lldx%lldx%lld", batch, (long long)p->m, (long long)p->n, (long long)p->k);
    fprintf(file, "%-26s %3d %18s %4.0f%% %4.0f%% %3.0f%% %7.2f %4.1f%%", row->name, row->calls, shape, 100 * fit.tile, 100 * fit.wave,
        100 * fit.ramp, 1e3 * row->seconds, 100 * row->seconds / total);
    if (near) fprintf(file, "  %.0f TFLOP/s at %lldx%lldx%lld", near->tflops, (long long)near->m, (long long)near->n, (long long)near->k);
    fprintf(file, "\n");
}

static void print_gemms(const SizeQuestion *question, FILE *file) {
    const Config *config = question->config;
    SCOPED(model_free)
    Model model =
        model_build(&config->model, config->precision, MODEL_TRAIN, config->batch.sequences, config->data.length, config_recompute(config));
    SCOPED_FREE SizeRow *rows = memory_allocate((size_t)model.graph->node_count * sizeof *rows);
    double total = work_times(model.graph, &question->hardware, question->measured).total;
    int count = collect_rows(rows, model.graph, question);
    fprintf(file, "\nGEMMs of a microbatch of %lld x %lld tokens (modeled%s)\n", (long long)config->batch.sequences,
        (long long)config->data.length, question->measured ? ", by the measured rates" : "");
    fprintf(file, "%-26s %3s %18s %5s %5s %4s %7s %5s\n", "operation", "n", "groups: m x n x k", "tiles", "waves", "ramp", "ms", "share");
    for (int i = 0; i < count && i < 16; i++) print_size_row(&rows[i], question, total, file);
    fp8_print(model.graph, config, file);
}

/* -- Neighbors and experts ---------------------------------------------------------------------------------------- */

static void print_change(FILE *file, const char *name, int64_t old, int64_t new) {
    if (old != new) fprintf(file, " model.%s=%lld", name, (long long)new);
}

static void print_neighbors(const SizeQuestion *question, FILE *file) {
    const ModelConfig *from = &question->config->model;
    Neighbor neighbors[SIZE_NEIGHBORS];
    SizeEstimate now = size_estimate(question, from);
    int count = size_neighbors(question, neighbors);
    fprintf(file, "\nneighbors of equal size (+-1%% parameters), no fault, by modeled relative speed\n");
    if (count == 0) fprintf(file, "  none is quicker\n");
    for (int i = 0; i < count; i++) {
        const ModelConfig *to = &neighbors[i].model;
        char parameters[32];
        log_format_count(neighbors[i].estimate.parameters, parameters);
        fprintf(file, "  x%.3f %8s ", now.seconds / neighbors[i].estimate.seconds, parameters);
        print_change(file, "layers", from->layers, to->layers);
        print_change(file, "width", from->width, to->width);
        print_change(file, "heads", from->heads, to->heads);
        print_change(file, "kv_heads", from->kv_heads, to->kv_heads);
        print_change(file, "head_dim", from->head_dim, to->head_dim);
        print_change(file, "ffn", from->ffn, to->ffn);
        print_change(file, "experts", from->experts, to->experts);
        print_change(file, "router_width", from->router_width, to->router_width);
        print_change(file, "vocabulary", from->vocabulary, to->vocabulary);
        fprintf(file, "\n");
    }
}

static void print_experts(const SizeQuestion *question, FILE *file) {
    ExpertChoice choices[SIZE_EXPERT_CHOICES];
    int count = size_experts(question, choices);
    if (count == 0) return;
    fprintf(file, "\nexperts of other widths, as many parameters in all (modeled), below this\nmodel: training against decoding, whose "
                  "step of 1 or 32 sequences reads the\nweights once\n");
    fprintf(file, "%7s %7s %7s %8s %8s %8s %9s %9s %9s\n", "experts", "width", "chosen", "rows", "GEMM 1", "active", "tokens/s", "ms of 1",
        "ms of 32");
    for (int i = 0; i < count; i++) {
        const ExpertChoice *c = &choices[i];
        char active[32];
        log_format_count(c->active, active);
        fprintf(file, "%7lld %7lld %7lld %8.0f %7.1f%% %8s %9.0f %9.2f %9.2f\n", (long long)c->experts, (long long)c->width,
            (long long)c->chosen, c->tokens, 100 * c->efficiency, active, c->training, 1e3 * c->decode[0], 1e3 * c->decode[1]);
    }
}

void size_print(const Sizing *sizing, const SizeQuestion *question, FILE *file) {
    SizeEstimate estimate = size_estimate(question, &question->config->model);
    char parameters[32], active[32];
    log_format_count(estimate.parameters, parameters);
    log_format_count(estimate.active, active);
    fprintf(file, "%s parameters, %s active per token, on %s\n\n", parameters, active, question->hardware.title);
    print_findings(sizing, file);
    print_gemms(question, file);
    print_neighbors(question, file);
    print_experts(question, file);
    if (sizing->faults) fprintf(file, "\n%d fault%s\n", sizing->faults, sizing->faults == 1 ? "" : "s");
    else fprintf(file, "\npasses\n");
}
