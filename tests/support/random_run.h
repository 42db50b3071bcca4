/* Run folders of models with random weights, norms and biases too, for tests of what comes after training. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/element.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "checkpoint.h"
#include "config/config.h"
#include "formats/hf_class.h"
#include "model/model.h"
#include "run/run.h"

/* Defaults, then `count` settings. */
static inline bool random_run_configure(Config *config, OptionStrings *strings, const char *const *settings, int count, Error *error) {
    options_defaults(&config_table, config, strings);
    bool good = true;
    for (int i = 0; i < count && good; i++) good = options_set(&config_table, config, strings, settings[i], error);
    return good && config_check(config, error);
}

/* Writes the initial weights of a graph without frozen parameters into a MASTER arena. */
static inline void random_run_initialize(const Graph *graph, const ModelConfig *config, uint64_t seed, void *master) {
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        ParameterInterval whole = {.parameter = i, .count = p->count};
        model_initialize_interval(graph, config, seed, &whole, device_cpu(), parameter_in(p, master));
    }
}

/* The model's initial weights, and noise on what they leave constant. Biases of routers stay equal if other programs
 * have none. */
static inline void random_run_weights(const Graph *graph, const ModelConfig *config, void *master) {
    random_run_initialize(graph, config, 1, master);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        bool balance_bias = p->kind == PARAMETER_BALANCE_BIAS;
        if (p->init_std > 0 || (balance_bias && hf_class(config)->lacks_router_biases)) continue;
        for (int64_t j = 0; j < p->count; j++) {
            double noise = (balance_bias ? 0.02 : 0.2) * rng_normal(2, hash_bytes(p->name, strlen(p->name)), j);
            if (noise < -0.45) noise = -0.45; /* folders of some classes hold gains minus 1, exact for gains from 0.5 on */
            void *to = parameter_in(p, master);
            element_set(p->element_bytes, to, j, element_get(p->element_bytes, to, j) + noise);
        }
    }
}

/* config.yaml and one checkpoint in config->run, which is made. */
static inline bool random_run_write(const Config *config, Error *error) {
    Model model = model_describe(&config->model, NULL, config->precision);
    const Graph *graph = model.graph;
    void *master = memory_allocate(graph->parameter_bytes);
    Interval *intervals = memory_allocate(graph->parameter_count * sizeof *intervals);
    random_run_weights(graph, &config->model, master);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        intervals[i] = (Interval){.name = p->name,
            .type = graph->precision == PRECISION_FP64 ? STORED_F64 : STORED_F32,
            .rank = p->rank,
            .slice = {.count = p->count},
            .data = parameter_in(p, master)};
        memcpy(intervals[i].shape, p->shape, sizeof p->shape);
    }
    bool written = run_open(config, error) && checkpoint_save(config->run, 7, intervals, graph->parameter_count, NULL, 1, NULL, error);
    free(intervals);
    free(master);
    model_free(&model);
    return written;
}
