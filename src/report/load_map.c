/* Heat-maps of expert load over time, one per layer. Called by report.c. */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "report/page_internal.h"

enum { LEVELS = 11, EVEN = LEVELS / 2 }; /* classes h0 to h10 of the style sheet */

/* Returns a layer's loads relative to an even share, [expert][HISTORY_COLUMNS], NaN if no tokens
 * were routed; the caller frees them. */
static double *load_ratios(const LoadMap *map, int64_t layer) {
    double *ratios = memory_allocate((size_t)map->experts * HISTORY_COLUMNS * sizeof *ratios);
    for (size_t column = 0; column < map->thin.count; column++) {
        const float *sums = load_column(map, column)->sums + layer * map->experts;
        double total = 0;
        for (int64_t expert = 0; expert < map->experts; expert++) total += sums[expert];
        for (int64_t expert = 0; expert < map->experts; expert++)
            ratios[expert * HISTORY_COLUMNS + column] = total > 0 ? sums[expert] * (double)map->experts / total : NAN;
    }
    return ratios;
}

static int load_level(double ratio) {
    const double extreme = 2; /* log2 of 4x */
    if (isnan(ratio)) return EVEN;
    double level = EVEN + EVEN * log2(ratio) / extreme;
    return (int)lround(fmin(fmax(level, 0), LEVELS - 1));
}

/* Draws one path per color and joins equal neighbors in time; the color of an even load is the
 * background. */
static void draw_cells(const Page *page, const LoadMap *map, const double *ratios, int columns) {
    for (int level = 0; level < LEVELS; level++) {
        if (level == EVEN) continue;
        fprintf(page->out, "<path class=\"h%d\" d=\"", level);
        for (int64_t expert = 0; expert < map->experts; expert++) {
            const double *row = ratios + expert * HISTORY_COLUMNS;
            for (int from = 0, to; from < columns; from = to + 1) {
                for (to = from; to < columns && load_level(row[to]) == level; to++) {}
                if (to > from) fprintf(page->out, "M%d %lldh%dv1h-%dz", from, (long long)expert, to - from, to - from);
            }
        }
        fputs("\"/>\n", page->out);
    }
}

static void expert_title(const Page *page, int64_t layer, int64_t expert, const double *row, int columns) {
    double low = INFINITY, high = -INFINITY;
    for (int column = 0; column < columns; column++) {
        if (isnan(row[column])) continue;
        low = fmin(low, row[column]);
        high = fmax(high, row[column]);
    }
    if (low > high) return;
    fprintf(page->out,
        "<rect class=\"stripe\" y=\"%lld\" width=\"%d\" height=\"1\"><title>layer %lld, expert %lld: %.2f to %.2f times an even share, "
        "%.2f at the end</title></rect>\n",
        (long long)expert, columns, (long long)layer, (long long)expert, low, high, row[columns - 1]);
}

static void load_map(const Page *page, int64_t layer) {
    const LoadMap *map = &page->views->history->load;
    const int columns = (int)map->thin.count;
    const double height = fmin(fmax(14 * (double)map->experts, 64), 320), count = (double)map->experts;
    SCOPED_FREE double *ratios = load_ratios(map, layer);
    double most = 0;
    for (int64_t expert = 0; expert < map->experts; expert++) most = fmax(most, ratios[expert * HISTORY_COLUMNS + columns - 1]);
    if (most == 0) return; /* a layer without experts */
    fprintf(page->out, "<div class=\"map\"><div class=\"head\"><h3>Layer %lld</h3><p>busiest at the end: %.2f\xC3\x97</p></div>\n",
        (long long)layer, most);
    fprintf(
        page->out, "<div class=\"chart\" style=\"grid-template-rows:0 %.0fpx 24px\"><div class=\"ylabels\" aria-hidden=\"true\">", height);
    fprintf(page->out, "<span style=\"top:%.2f%%\">0</span>", 50 / count);
    if (map->experts > 1) fprintf(page->out, "<span style=\"top:%.2f%%\">%lld</span>", 100 - 50 / count, (long long)map->experts - 1);
    fprintf(page->out,
        "</div><svg viewBox=\"0 0 %d %lld\" preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\" role=\"img\" aria-label=\"Load of "
        "the experts of layer %lld over steps\">\n<rect class=\"h%d\" width=\"%d\" height=\"%lld\"/>\n",
        columns, (long long)map->experts, (long long)layer, EVEN, columns, (long long)map->experts);
    draw_cells(page, map, ratios, columns);
    for (int64_t expert = 0; expert < map->experts; expert++) expert_title(page, layer, expert, ratios + expert * HISTORY_COLUMNS, columns);
    fprintf(page->out,
        "</svg><div class=\"xlabels\" aria-hidden=\"true\"><span style=\"left:0\">step %lld</span><span "
        "style=\"left:100%%\">%lld</span></div></div></div>\n",
        (long long)load_column(map, 0)->first, (long long)map->last_step);
}

void page_load(const Page *page) {
    const LoadMap *map = &page->views->history->load;
    if (map->layers == 0) return;
    fputs("<section>\n<div class=\"head\"><h2>Expert load</h2>", page->out);
    if (map->too_large) {
        fprintf(page->out, "</div><p class=\"soft\">%lld layers of %lld experts are too many to draw.</p></section>\n",
            (long long)map->layers, (long long)map->experts);
        return;
    }
    fprintf(page->out, "<div class=\"scale\">\xC2\xBC\xC3\x97 <svg viewBox=\"0 0 %d 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
        LEVELS);
    for (int i = 0; i < LEVELS; i++) fprintf(page->out, "<rect class=\"h%d\" x=\"%d\" width=\"1.02\" height=\"1\"/>", i, i);
    fputs("</svg> 4\xC3\x97 an even share</div></div>\n<div class=\"maps\">\n", page->out);
    for (int64_t layer = 0; layer < map->layers; layer++) load_map(page, layer);
    fputs("</div></section>\n", page->out);
}
