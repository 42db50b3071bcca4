/* Histograms of the norms of tensors at the newest step that has them. Called by load_map.c, below the maps of layers. */
#include <math.h>

#include "report/page_internal.h"

enum { BAR_WIDTH = 20, BARS_HEIGHT = 100 /* in SVG units */ };

static int64_t most_tensors(const NormBins *bins) {
    int64_t most = 1;
    for (int i = 0; i < bins->count; i++) most = bins->tensors[i] > most ? bins->tensors[i] : most;
    return most;
}

static void print_bars(FILE *out, const char *name, const NormBins *bins) {
    const int64_t most = most_tensors(bins);
    int64_t all = 0;
    for (int i = 0; i < bins->count; i++) all += bins->tensors[i];
    fprintf(out,
        "<div class=\"map\"><div class=\"head\"><h3>%s</h3><p>%lld tensors</p></div>\n<svg class=\"bars\" viewBox=\"0 0 %d %d\" "
        "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Histogram of the norms of %s\">",
        name, (long long)all, bins->count * BAR_WIDTH, BARS_HEIGHT, name);
    for (int i = 0; i < bins->count; i++) {
        double height = BARS_HEIGHT * (double)bins->tensors[i] / (double)most;
        fprintf(out, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"><title>2^%d to 2^%d: %lld</title></rect>", i * BAR_WIDTH,
            BARS_HEIGHT - height, BAR_WIDTH - 1, height, bins->first + i, bins->first + i + 1, (long long)bins->tensors[i]);
    }
    fprintf(out, "</svg><p class=\"soft ends\"><span>2<sup>%d</sup></span><span>2<sup>%d</sup></span></p></div>\n", bins->first,
        bins->first + bins->count);
}

void page_histograms(const Page *page) {
    const History *history = page->views->history;
    if (!history->gradient_bins.step || !history->weight_bins.step) return;
    fprintf(page->out,
        "<section>\n<h2>Norms of tensors</h2>\n<p class=\"soft\">how many tensors have which norm, step %lld</p>\n<div class=\"maps\">\n",
        (long long)history->gradient_bins.step);
    print_bars(page->out, "Gradients", &history->gradient_bins);
    print_bars(page->out, "Weights", &history->weight_bins);
    fputs("</div></section>\n", page->out);
}
