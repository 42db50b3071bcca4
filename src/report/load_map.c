/* Heat-maps over time: expert load, one per layer, and norms of layers. A cell is one character, which page.js paints. Called by report.c. */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/scope.h"
#include "report/page_internal.h"

enum {
    SCALE_COLORS = 11,
    EVEN_LEVEL = 30,         /* of 0 to 60, 15 for each factor of 2; page.js has the same numbers */
    SHOWN_CELLS = 60 * 1000, /* of all layers, and so bytes of the page */
};

/* Columns of the page: each joins `stride` of the history. */
static size_t column_stride(const LoadMap *map) {
    size_t cells = map->thin.count * (size_t)(map->layers * map->experts);
    return (cells + SHOWN_CELLS - 1) / SHOWN_CELLS;
}

static size_t page_columns(const LoadMap *map) { return (map->thin.count + column_stride(map) - 1) / column_stride(map); }

/* Returns a layer's loads relative to an even share, [experts][page_columns]; NaN: no tokens were routed. The caller frees. */
static double *load_ratios(const LoadMap *map, int64_t layer) {
    const size_t stride = column_stride(map), columns = page_columns(map), experts = (size_t)map->experts;
    double *ratios = memory_allocate(experts * columns * sizeof *ratios);
    for (size_t column = 0; column < columns; column++) {
        double total = 0;
        for (size_t expert = 0; expert < experts; expert++) {
            double *ratio = &ratios[expert * columns + column];
            *ratio = 0;
            for (size_t i = column * stride; i < (column + 1) * stride && i < map->thin.count; i++)
                *ratio += load_column(map, i)->sums[(size_t)layer * experts + expert];
            total += *ratio;
        }
        for (size_t expert = 0; expert < experts; expert++) ratios[expert * columns + column] *= total > 0 ? (double)experts / total : NAN;
    }
    return ratios;
}

static char level_character(double ratio) {
    static const char characters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxy";
    double level = EVEN_LEVEL + (isnan(ratio) ? 0 : EVEN_LEVEL / 2 * log2(ratio));
    return characters[lround(fmin(fmax(level, 0), 2 * EVEN_LEVEL))];
}

/* What the maps of a section show. */
typedef struct MapKind {
    const char *heading, *row, *scale;
    const char *names[2]; /* of the maps; NULL: "Layer N" */
} MapKind;

static void print_layer_map(const Page *page, const LoadMap *map, const MapKind *kind, int64_t layer) {
    const size_t columns = page_columns(map), experts = (size_t)map->experts;
    const double height = fmin(fmax(14 * (double)experts, 64), 320);
    SCOPED_FREE double *ratios = load_ratios(map, layer);
    double most = 0;
    char name[32];
    snprintf(name, sizeof name, "Layer %lld", (long long)layer);
    if (kind->names[0]) snprintf(name, sizeof name, "%s", kind->names[layer]);
    for (size_t expert = 0; expert < experts; expert++) most = fmax(most, ratios[(expert + 1) * columns - 1]);
    if (most == 0) return; /* a layer without experts */
    fprintf(page->out,
        "<div class=\"map\"><div class=\"head\"><h3>%s</h3><p aria-live=\"polite\">largest at the end: %.2f\xC3\x97</p></div>\n<canvas "
        "width=\"%zu\" height=\"%zu\" style=\"height:%.0fpx\" tabindex=\"0\" role=\"img\" aria-label=\"%s, %s by %s: arrow keys move\" "
        "data-load=\"",
        name, most, columns, experts, height, kind->heading, name, kind->row);
    for (size_t cell = 0; cell < experts * columns; cell++) putc(level_character(ratios[cell]), page->out);
    fputs("\"></canvas></div>\n", page->out);
}

static void map_section(const Page *page, const LoadMap *map, const MapKind *kind) {
    if (map->layers == 0) return;
    fprintf(page->out, "<section>\n<div class=\"head\"><h2>%s</h2>", kind->heading);
    if (map->too_large) {
        fprintf(page->out, "</div><p class=\"soft\">%lld layers of %lld experts are too many to draw.</p></section>\n",
            (long long)map->layers, (long long)map->experts);
        return;
    }
    fprintf(page->out, "<div class=\"scale\">\xC2\xBC\xC3\x97 <svg viewBox=\"0 0 %d 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
        SCALE_COLORS);
    for (int i = 0; i < SCALE_COLORS; i++) fprintf(page->out, "<rect class=\"h%d\" x=\"%d\" width=\"1.02\" height=\"1\"/>", i, i);
    fprintf(page->out,
        "</svg> 4\xC3\x97 %s</div></div>\n<p class=\"soft\">%ss from top to bottom, steps %lld to %lld from left to right</p>\n"
        "<noscript><p class=\"soft\">A script paints the maps.</p></noscript>\n<div class=\"maps\" data-row=\"%s\" data-steps=\"",
        kind->scale, kind->row, (long long)load_column(map, 0)->first, (long long)map->last_step, kind->row);
    for (size_t i = 0; i < map->thin.count; i += column_stride(map)) fprintf(page->out, "%lld,", (long long)load_column(map, i)->first);
    fprintf(page->out, "%lld\">\n", (long long)map->last_step + 1);
    for (int64_t layer = 0; layer < map->layers; layer++) print_layer_map(page, map, kind, layer);
    fputs("</div></section>\n", page->out);
}

void page_load(const Page *page) {
    static const MapKind kind = {.heading = "Expert load", .row = "expert", .scale = "an even share"};
    map_section(page, &page->views->history->load, &kind);
}

void page_layers(const Page *page) {
    static const MapKind kind = {"Norms of layers", "layer", "the mean of all layers", {"Gradients", "Weights"}};
    map_section(page, &page->views->history->norms, &kind);
    page_histograms(page);
}
