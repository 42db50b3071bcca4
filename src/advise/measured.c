/* Reads the results of `smelt bench`. Everything in the file is checked before use, because the
 * file is not trusted. Owns the rows of a Measured. */
#include "advise/measured.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/array.h"
#include "base/scope.h"
#include "base/strings.h"

static const double farthest = 2; /* limit for comparable shapes: sum of |log2| of the ratios of m, n and k */
static const double most_size = 1e9, most_rate = 1e6;

static bool get_size(const json_t *row, const char *name, int64_t *value) {
    double number = json_number_value(json_object_get(row, name));
    *value = number >= 1 && number <= most_size ? (int64_t)number : 0;
    return *value > 0;
}

static double get_rate(const json_t *row, const char *name) {
    double value = json_number_value(json_object_get(row, name));
    return isfinite(value) && value > 0 && value < most_rate ? value : 0;
}

static const char *get_text(const json_t *row, const char *name) {
    const char *text = json_string_value(json_object_get(row, name));
    return text ? text : "";
}

/* Keeps the fastest of several rows of one shape (programs, layouts). */
static void add_gemm(Measured *measured, MeasuredGemm gemm) {
    measured->best = fmax(measured->best, gemm.tflops * 1e12);
    for (int i = 0; i < measured->count; i++) {
        MeasuredGemm *old = &measured->gemms[i];
        if (old->m != gemm.m || old->n != gemm.n || old->k != gemm.k) continue;
        old->tflops = fmax(old->tflops, gemm.tflops);
        return;
    }
    array_append(measured->gemms, measured->count, gemm);
}

static void read_measured_row(Measured *measured, const json_t *row) {
    MeasuredGemm gemm = {.tflops = get_rate(row, "tflops")};
    const char *type = get_text(row, "type");
    bool sized = get_size(row, "m", &gemm.m) && get_size(row, "n", &gemm.n) && get_size(row, "k", &gemm.k);
    if (sized && gemm.tflops > 0 && (!*type || !strcmp(type, "bf16"))) add_gemm(measured, gemm);
    if (!strcmp(get_text(row, "kernel"), "copy") && !strcmp(get_text(row, "level"), "memory"))
        measured->bandwidth = fmax(measured->bandwidth, 1e9 * get_rate(row, "gbps"));
}

static const json_t *find_measured_rows(const json_t *root) {
    if (json_is_array(root)) return root;
    const json_t *rows = json_object_get(root, "rows");
    return json_is_array(rows) ? rows : json_object_get(root, "results");
}

enum { RESULTS_LIMIT = 64 << 20 }; /* bytes of a file */

bool measured_read(Measured *measured, const char *path, Error *error) {
    json_error_t wrong;
    *measured = (Measured){0};
    snprintf(measured->source, sizeof measured->source, "%s", path);
    SCOPED_FREE char *text = file_read(path, RESULTS_LIMIT, NULL, error);
    if (!text) return error_recode(error, ERROR_DATA) || error_context(error, "bench=%s", path);
    json_t *root = json_loads(text, 0, &wrong);
    if (!root)
        return error_set(
            error, ERROR_DATA, "bench=%s: %s (line %d); use the JSON file of smelt bench", path, one_line(wrong.text), wrong.line);
    const json_t *rows = find_measured_rows(root);
    for (size_t i = 0; i < json_array_size(rows); i++) read_measured_row(measured, json_array_get(rows, i));
    json_decref(root);
    if (measured->count > 0 || measured->bandwidth > 0) return true;
    return error_set(error, ERROR_DATA,
        "bench=%s has neither a bf16 GEMM (m, n, k, tflops) nor a memory copy (kernel, level, gbps): use the JSON of smelt bench gemm or "
        "memory",
        path);
}

void measured_free(Measured *measured) {
    free(measured->gemms);
    *measured = (Measured){0};
}

const MeasuredGemm *measured_find(const Measured *measured, int64_t m, int64_t n, int64_t k) {
    const MeasuredGemm *nearest = NULL;
    double least = farthest;
    for (int i = 0; i < measured->count; i++) {
        const MeasuredGemm *p = &measured->gemms[i];
        double distance =
            fabs(log2((double)m / (double)p->m)) + fabs(log2((double)n / (double)p->n)) + fabs(log2((double)k / (double)p->k));
        if (distance > least || (nearest && distance == least)) continue;
        nearest = p;
        least = distance;
    }
    return nearest;
}
