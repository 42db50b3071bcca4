/* A libFuzzer entry for the reader of config.json: any JSON must be refused with one line, or give a model that is
 * written in terms that are read back as the same model. Owns nothing beyond one
 * call. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "formats/hf_internal.h"

static void require_same_model(const ModelConfig *model, Precision precision) {
    ModelConfig again;
    Precision other;
    Error error = {0};
    if (!hf_check(model, &error)) return; /* mpt has settings that only its own code knows */
    HfExport export = {.config = model, .precision = precision};
    json_t *written = hf_config(&export);
    char *warnings;
    require(hf_parse_config(written, &again, &other, &warnings, &error) && !warnings);
    require(other == precision && again.family == model->family && again.layers == model->layers && again.width == model->width &&
            again.heads == model->heads && again.kv_heads == model->kv_heads && again.head_dim == model->head_dim &&
            again.ffn == model->ffn && again.vocabulary == model->vocabulary && again.context == model->context &&
            again.window == model->window && again.experts == model->experts && again.rope_theta == model->rope_theta &&
            again.rope_factor == model->rope_factor && again.rope_attention_factor == model->rope_attention_factor &&
            (model->rope_factor == 1 || again.rope_scaling == model->rope_scaling) && again.padding == model->padding &&
            again.norm_epsilon == model->norm_epsilon && again.tied == model->tied);
    json_decref(written);
}

FUZZ(hf_config) {
    ModelConfig model;
    Precision precision;
    Error error = {0};
    json_t *object = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    if (!object) return;
    char *warnings;
    if (hf_parse_config(object, &model, &precision, &warnings, &error)) require_same_model(&model, precision);
    else require_line(&error);
    require(!warnings || !strchr(warnings, '\n'));
    free(warnings);
    json_decref(object);
}
