/* The width of experts. Few wide experts make large GEMMs and train fast. Many narrow experts, of
 * which more are chosen, cost the same training FLOPs but are read one by one in decoding. The
 * ZAYA1 paper chooses widths that suit both; this file computes both costs. Owns nothing. */
#include <math.h>

#include "advise/size.h"

/* Returns the bytes of weights that a decoding step reads: all except the experts that no sequence
 * chose. With even routing, (1 - k / E)^sequences of the experts are unread. */
static double decode_bytes(const ModelConfig *model, double parameters, double sequences) {
    double experts =
        3.0 * (double)model_expert_layers(model, model->layers) * (double)model->experts * (double)model->ffn * (double)model->width;
    double unread = pow(1 - (double)model->experts_per_token / (double)model->experts, sequences);
    /* An embedding that the head does not share gives one row per sequence. */
    double table = model->tied ? 0 : (double)model->vocabulary * (double)model->width;
    return 2 * (parameters - table - experts * unread);
}

static ExpertChoice weigh(const SizeQuestion *question, const ModelConfig *model) {
    const Config *config = question->config;
    SizeEstimate estimate = size_estimate(question, model);
    double rows = (double)config->batch.sequences * (double)config->data.length * (double)model->experts_per_token / (double)model->experts;
    GemmShape first = {(int64_t)ceil(rows), 2 * model->ffn, model->width, model->experts};
    ExpertChoice choice = {.experts = model->experts,
        .width = model->ffn,
        .chosen = model->experts_per_token,
        .tokens = rows,
        .efficiency = gemm_fit(&first, &question->hardware).efficiency,
        .training = 1 / estimate.seconds,
        .active = estimate.active};
    for (int i = 0; i < 2; i++) choice.decode[i] = decode_bytes(model, estimate.parameters, i ? 32 : 1) / question->hardware.rates.memory;
    return choice;
}

int size_experts(const SizeQuestion *question, ExpertChoice choices[SIZE_EXPERT_CHOICES]) {
    static const struct {
        double experts, width, chosen;
    } factors[SIZE_EXPERT_CHOICES] = {{1, 1, 1}, {0.5, 2, 1}, {2, 0.5, 1}, {2, 0.5, 2}, {4, 0.25, 1}, {4, 0.25, 4}};
    const ModelConfig *from = &question->config->model;
    int count = 0;
    for (int i = 0; i < SIZE_EXPERT_CHOICES && from->experts; i++) {
        Config other = *question->config;
        ModelConfig *model = &other.model;
        Error ignored = {0};
        model->experts = (int64_t)((double)from->experts * factors[i].experts);
        model->ffn = (int64_t)((double)from->ffn * factors[i].width);
        model->experts_per_token = (int64_t)((double)from->experts_per_token * factors[i].chosen);
        bool whole = model->experts * model->ffn == from->experts * from->ffn && model->ffn >= 1 && model->experts_per_token <= 64 &&
                     model->experts <= 511;
        if (whole && config_check(&other, &ignored)) choices[count++] = weigh(question, model);
    }
    return count;
}
