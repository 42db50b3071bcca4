/* Model folders that others wrote: what config.json says becomes a configuration, tensors find their places whatever
 * their type, file and layout, and what is missing, superfluous, contradictory or damaged is one line that names
 * file and tensor. */
#include "support/files.h"
#include "base/bf16.h"
#include "base/scope.h"
#include "support/hf_fixture.h"
#include "support/mentions.h"

#include <math.h>

enum { TENSORS = 200 };

static FixtureSettings zaya = {"model.family=zaya", "model.experts=3", "model.heads=4", "model.kv_heads=2", "model.head_dim=8",
    "model.width=24", "model.ffn=20", "model.router_width=12", "model.rope_fraction=0.5", "model.layers=2"};
static FixtureSettings mistral = {"model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=32", "model.head_dim=8",
    "model.ffn=40", "model.layers=1", "model.window=9", "model.rope_theta=5e5"};
static FixtureSettings mixtral = {"model.family=llama", "model.heads=2", "model.kv_heads=2", "model.width=16", "model.ffn=12",
    "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "model.auxiliary_loss=0.04",
    "model.auxiliary_scope=model"};
static FixtureSettings qwen2 = {
    "model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40", "model.layers=1", "model.qkv_bias=true"};
static FixtureSettings qwen3 = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=1", "model.head_dim=12", "model.qk_norm=true", "model.tied=false"};
static FixtureSettings qwen3_moe = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.head_dim=12", "model.qk_norm=true", "model.experts=3", "model.experts_per_token=2", "model.experts_period=2",
    "model.experts_first=1", "model.dense_ffn=40", "model.window=9", "model.auxiliary_scope=model"};
static FixtureSettings mpt = {"model.family=mpt", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=128", "model.layers=2",
    "model.clip_qkv=2", "model.softmax_scale=0.3"};
static FixtureSettings olmoe = {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.clip_qkv=3", "model.padding=4", "model.auxiliary_scope=model"};
static FixtureSettings deepseek_v2 = {"model.family=deepseek", "model.heads=4", "model.kv_heads=4", "model.head_dim=12", "model.rope_dim=4",
    "model.value_dim=7", "model.kv_lora_rank=10", "model.width=32", "model.ffn=12", "model.layers=3", "model.dense_ffn=40",
    "model.experts=6", "model.experts_first=1", "model.experts_per_token=2", "model.shared_experts=2", "model.expert_groups=3",
    "model.groups_chosen=2", "model.gate_scale=1.5", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_mscale=0.7",
    "model.context=256", "model.rope_original_context=64"};
static FixtureSettings deepseek_v3 = {"model.family=deepseek", "model.heads=4", "model.kv_heads=4", "model.head_dim=12", "model.rope_dim=6",
    "model.value_dim=8", "model.kv_lora_rank=10", "model.q_lora_rank=14", "model.width=32", "model.ffn=12", "model.layers=2",
    "model.experts=4", "model.experts_per_token=2", "model.shared_experts=1", "model.router_scores=sigmoid", "model.expert_groups=2",
    "model.groups_chosen=1", "model.gate_scale=2.5", "model.rope_interleave=false"};
static FixtureSettings olmo3 = {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=4", "model.window=9", "model.window_period=4", "model.window_first=3", "model.window_skips=true",
    "model.window_rope_theta=900", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_attention_factor=1.2", "model.tied=false"};
static FixtureSettings gpt_oss = {"model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=4", "model.head_dim=12", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "model.window=9",
    "model.window_period=2", "model.window_first=1", "model.window_skips=true", "model.qkv_bias=true", "model.swiglu_limit=3",
    "model.auxiliary_scope=model"};
static FixtureSettings gemma2 = {"model.family=gemma", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=4", "model.head_dim=12", "model.softmax_scale=0.25", "model.window=9", "model.window_period=2", "model.window_first=1",
    "model.window_skips=true", "model.score_cap=2.5", "model.logit_cap=7", "model.rope_scaling=linear", "model.rope_factor=8"};
static FixtureSettings gemma3 = {"model.family=gemma", "model.qk_norm=true", "model.heads=4", "model.kv_heads=2", "model.width=32",
    "model.ffn=12", "model.layers=4", "model.head_dim=12", "model.softmax_scale=0.25", "model.window=9", "model.window_period=6",
    "model.window_first=3", "model.window_skips=true", "model.rope_theta=1000000", "model.window_rope_theta=10000",
    "model.rope_scaling=linear", "model.rope_factor=8"};
static FixtureSettings smollm3 = {"model.family=smollm3", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=6", "model.nope_period=3", "model.window=9", "model.window_period=3", "model.window_first=2", "model.qkv_bias=true",
    "model.rope_theta=2000000"};
static FixtureSettings phi3 = {"model.family=phi3", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12", "model.layers=2",
    "model.window=9", "model.rope_fraction=0.75", "model.rope_scaling=longrope", "model.rope_factor=2", "model.rope_original_context=32",
    "model.rope_short_factors=1,1.25,1.5", "model.rope_long_factors=1,3,12", "model.rope_attention_factor=1.1"};
static FixtureSettings granite = {"model.family=granite", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=2", "model.embedding_scale=12", "model.residual_scale=0.22", "model.softmax_scale=0.1", "model.logit_divisor=8",
    "model.qkv_bias=true"};
static FixtureSettings granitemoe = {"model.family=granite", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "model.auxiliary_scope=model",
    "model.embedding_scale=12", "model.residual_scale=0.22", "model.softmax_scale=0.1", "model.logit_divisor=8"};
static FixtureSettings glm4_moe = {"model.family=glm", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=3", "model.dense_ffn=40", "model.experts=4", "model.experts_first=1", "model.experts_per_token=2",
    "model.shared_experts=1", "model.router_scores=sigmoid", "model.qkv_bias=true", "model.qk_norm=true", "model.rope_fraction=0.5"};
static FixtureSettings minimax_m2 = {"model.family=minimax", "model.heads=4", "model.kv_heads=2", "model.head_dim=12", "model.width=32",
    "model.ffn=12", "model.layers=2", "model.experts=4", "model.experts_per_token=2", "model.router_scores=sigmoid",
    "model.renormalise=true", "model.rope_fraction=0.5"};
static FixtureSettings ministral3 = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=12",
    "model.layers=2", "model.window=9", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32",
    "model.rope_query_scale=0.1"};
static FixtureSettings qwen3_5 = {"model.family=qwen3_5", "model.heads=4", "model.kv_heads=2", "model.head_dim=16", "model.width=32",
    "model.ffn=24", "model.layers=3", "model.attention_period=2", "model.delta_heads=4", "model.delta_key_heads=2", "model.delta_key_dim=6",
    "model.delta_value_dim=5", "model.rope_fraction=0.25"};
static FixtureSettings qwen3_5_moe = {"model.family=qwen3_5", "model.heads=4", "model.kv_heads=2", "model.head_dim=16", "model.width=32",
    "model.ffn=12", "model.layers=2", "model.attention_period=2", "model.delta_heads=2", "model.delta_key_heads=2", "model.delta_key_dim=8",
    "model.delta_value_dim=8", "model.experts=4", "model.experts_per_token=2", "model.shared_experts=2", "model.renormalise=true",
    "model.auxiliary_scope=model"};
static FixtureSettings qwen3_next = {"model.family=qwen3_next", "model.heads=4", "model.kv_heads=2", "model.head_dim=16", "model.width=32",
    "model.ffn=12", "model.layers=4", "model.attention_period=2", "model.delta_heads=4", "model.delta_key_heads=2", "model.delta_key_dim=8",
    "model.delta_value_dim=6", "model.experts=4", "model.experts_per_token=2", "model.shared_experts=2", "model.renormalise=true",
    "model.experts_first=1", "model.experts_period=2", "model.dense_ffn=20", "model.auxiliary_scope=model"};
static FixtureSettings gpt2 = {
    "model.family=gpt2", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=40", "model.layers=2"};
static FixtureSettings yarn = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=1", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_attention_factor=1.2", "model.rope_beta_fast=16",
    "model.rope_truncate=false", "model.rope_original_context=32", "model.padding=3"};
static FixtureSettings linear = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=1", "model.qkv_bias=true", "model.window=6", "model.rope_scaling=linear", "model.rope_factor=2.5"};
static FixtureSettings dynamic = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=1", "model.rope_scaling=dynamic", "model.rope_factor=2", "model.rope_original_context=128", "model.context=256"};
static FixtureSettings longrope = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=1", "model.rope_scaling=longrope", "model.rope_factor=2", "model.rope_original_context=32",
    "model.rope_short_factors=1,1.25,1.5,1.0299999713897705", "model.rope_long_factors=1,3,12,40", "model.rope_attention_factor=1.1"};
static FixtureSettings deepseek_v3_mtp = {"model.family=deepseek", "model.heads=4", "model.kv_heads=4", "model.head_dim=12",
    "model.rope_dim=6", "model.value_dim=8", "model.kv_lora_rank=10", "model.width=32", "model.ffn=12", "model.layers=2", "model.experts=4",
    "model.experts_per_token=2", "model.shared_experts=1", "model.router_scores=sigmoid", "model.tied=false", "model.mtp=1"};
static const char *const *const models[] = {zaya, yarn, linear, dynamic, longrope, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, mpt,
    olmoe, olmo3, gpt_oss, deepseek_v2, deepseek_v3, gemma2, gemma3, smollm3, phi3, granite, granitemoe, glm4_moe, minimax_m2, ministral3,
    qwen3_5, qwen3_5_moe, qwen3_next, gpt2, deepseek_v3_mtp};
enum { MODELS = sizeof models / sizeof *models };

/* The model is written to f->out. */
static void start_sharded(Fixture *f, const char *const *settings, Precision precision, int64_t shard_bytes) {
    Error error = {0};
    fixture_start(f, settings, precision);
    f->export.shard_bytes = shard_bytes;
    if (!hf_write(&f->export, f->out, false, &error)) fail_msg("%s", error.message);
}

static void start(Fixture *f, const char *const *settings) { start_sharded(f, settings, PRECISION_FP32, 0); }

static float *load(const Fixture *f, Error *error) {
    float *master = memory_allocate(f->model.graph->parameter_bytes);
    if (hf_load_weights(f->out, &f->config.model, f->model.graph, master, error)) return master;
    free(master);
    return NULL;
}

static float *load_good(const Fixture *f) {
    Error error = {0};
    float *master = load(f, &error);
    if (!master) fail_msg("%s", error.message);
    return master;
}

static void assert_error(const Error *error, const char *first, const char *second) {
    assert_int_equal(error->code, ERROR_CHECKPOINT);
    if (!mentions(error->message, first) || !mentions(error->message, second))
        fail_msg("\"%s\" does not contain \"%s\" and \"%s\"", error->message, first, second);
}

static void assert_load_refused(const Fixture *f, const char *file, const char *what) {
    Error error = {0};
    assert_null(load(f, &error));
    assert_error(&error, file, what);
}

static int find_parameter(const Graph *graph, const char *name) {
    for (int i = 0; i < graph->parameter_count; i++)
        if (!strcmp(graph->parameters[i].name, name)) return i;
    fail_msg("%s is no parameter", name);
    return -1;
}

static void assert_same_weights(const Fixture *f, const float *master) {
    const Graph *graph = f->model.graph;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (memcmp(parameter_in(p, master), parameter_in(p, f->export.master), p->count * sizeof(float))) fail_msg("%s differs", p->name);
    }
}

/* -- Changing folders ---------------------------------------------------------------------------------------------- */

static char *path_of(const Fixture *f, const char *name) { return memory_format("%s/%s", f->out, name); }

/* Sets a field of a JSON file to a value in JSON; NULL removes it. */
static void edit_json(const Fixture *f, const char *name, const char *key, const char *value) {
    char *path = path_of(f, name);
    json_t *content = json_load_file(path, 0, NULL);
    assert_non_null(content);
    if (value) assert_int_equal(json_object_set_new(content, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else assert_int_equal(json_object_del(content, key), 0);
    assert_int_equal(json_dump_file(content, path, 0), 0);
    json_decref(content);
    free(path);
}

/* The tensors of model.safetensors, to be changed and written back. */
typedef struct Edit {
    Safetensors file;
    StoredTensor tensors[TENSORS];
    size_t count;
} Edit;

static void edit_open(const Fixture *f, Edit *edit) {
    Error error = {0};
    char *path = path_of(f, "model.safetensors");
    assert_true(safetensors_open(&edit->file, path, &error));
    assert_true(edit->file.count < TENSORS);
    edit->count = edit->file.count;
    memcpy(edit->tensors, edit->file.tensors, edit->count * sizeof *edit->tensors);
    free(path);
}

static void edit_write(const Fixture *f, Edit *edit) {
    Error error = {0};
    char *path = path_of(f, "model.safetensors"), *fresh = path_of(f, "fresh");
    if (!safetensors_write(fresh, edit->tensors, edit->count, NULL, &error)) fail_msg("%s", error.message);
    assert_int_equal(rename(fresh, path), 0);
    safetensors_close(&edit->file);
    free(fresh);
    free(path);
}

static StoredTensor *edit_find(Edit *edit, const char *name) {
    for (size_t i = 0; i < edit->count; i++)
        if (!strcmp(edit->tensors[i].name, name)) return &edit->tensors[i];
    fail_msg("%s is not in the file", name);
    return NULL;
}

/* -- Configurations ------------------------------------------------------------------------------------------------ */

static void what_was_written_is_read_back(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        Fixture f;
        HfModel model;
        Error error = {0};
        char text[512] = "";
        start_sharded(&f, models[i], i % 2 ? PRECISION_BF16 : PRECISION_FP32, 0);
        if (!hf_read(f.out, &model, &error)) fail_msg("%s", error.message);
        Config read = f.config;
        read.model = model.config;
        read.model.router_width = f.config.model.family == FAMILY_zaya ? read.model.router_width : f.config.model.router_width;
        if (options_difference(&config_table, &f.config, &read, text, sizeof text)) fail_msg("model %d: %s", i, text);
        assert_int_equal(model.precision, f.export.precision);
        assert_true(model.bytes);
        hf_release(&model);
        fixture_stop(&f);
    }
}

static void stacked_experts_are_read_and_written_one_by_one(void **state) {
    (void)state;
    static const char *const *const stacked[] = {mixtral, qwen3_moe, olmoe, deepseek_v2, deepseek_v3, glm4_moe, minimax_m2};
    for (size_t i = 0; i < sizeof stacked / sizeof *stacked; i++) {
        Fixture f;
        Error error = {0};
        StoredTensor tensors[TENSORS];
        size_t count = 0;
        start(&f, stacked[i]);
        for (int p = 0; p < f.model.graph->parameter_count; p++) {
            const Parameter *parameter = &f.model.graph->parameters[p];
            if (parameter->kind == PARAMETER_BALANCE_BIAS && hf_class(&f.config.model)->lacks_router_biases) continue;
            StoredTensor *tensor = &tensors[count++];
            *tensor = (StoredTensor){
                .name = parameter->name, .type = STORED_F32, .rank = parameter->rank, .data = parameter_in(parameter, f.export.master)};
            memcpy(tensor->shape, parameter->shape, sizeof parameter->shape);
        }
        SCOPED_FREE char *path = memory_format("%s/model.safetensors", f.out), *again = memory_format("%s/again", f.folder);
        SCOPED_FREE char *written = memory_format("%s/model.safetensors", again);
        int64_t size = 0, other = 0;
        SCOPED_FREE char *split = file_read(path, 1 << 24, &size, &error);
        assert_true(safetensors_write(path, tensors, count, NULL, &error));
        SCOPED_FREE float *master = load_good(&f);
        f.export.master = memcpy((void *)f.export.master, master, (size_t)f.model.graph->parameter_bytes);
        if (!hf_write(&f.export, again, false, &error)) fail_msg("%s", error.message);
        SCOPED_FREE char *back = file_read(written, 1 << 24, &other, &error);
        assert_int_equal(size, other);
        assert_memory_equal(back, split, (size_t)size);
        fixture_stop(&f);
    }
}

enum { FP4_BLOCK = 32, FP4_BIAS = 127 };

/* Fills a stack of experts [E, R, C] with numbers of MXFP4, and the tensors that hold them: rows of gate and up
 * projections in turn. */
static void fill_mxfp4(const Parameter *p, float *values, uint8_t *blocks, uint8_t *scales) {
    static const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int64_t rows = p->shape[1], columns = p->shape[2];
    for (int64_t i = 0; i < p->count; i++) {
        int64_t expert = i / (rows * columns), row = i / columns % rows, column = i % columns;
        int64_t stored = !p->alternates ? row : row < rows / 2 ? 2 * row : 2 * (row - rows / 2) + 1;
        int64_t at = (expert * rows + stored) * columns + column;
        uint32_t code = rng_bits(4, (uint64_t)p->offset, (uint64_t)i).word[0] % 16;
        uint8_t scale = (uint8_t)(FP4_BIAS - 4 + at / FP4_BLOCK % 9);
        values[i] = ldexpf(code < 8 ? numbers[code] : -numbers[code - 8], scale - FP4_BIAS);
        blocks[at / 2] |= (uint8_t)(code << 4 * (at % 2));
        scales[at / FP4_BLOCK] = scale;
    }
}

/* Puts the tensors of experts in MXFP4 in place of `tensor`. Returns their number. */
static size_t put_mxfp4(StoredTensor *tensors, const Parameter *p, float *values) {
    uint8_t *blocks = memory_allocate((size_t)p->count / 2), *scales = memory_allocate((size_t)p->count / FP4_BLOCK);
    fill_mxfp4(p, values, blocks, scales);
    tensors[0] = (StoredTensor){.name = memory_format("%s_blocks", p->name), .type = STORED_U8, .rank = 4, .data = blocks};
    tensors[1] = (StoredTensor){.name = memory_format("%s_scales", p->name), .type = STORED_U8, .rank = 3, .data = scales};
    for (int i = 0; i < 2; i++) {
        memcpy(tensors[i].shape, p->shape, 2 * sizeof *p->shape);
        tensors[i].shape[2] = p->shape[2] / FP4_BLOCK;
    }
    tensors[0].shape[3] = FP4_BLOCK / 2;
    return 2;
}

static void experts_in_mxfp4_are_dequantized(void **state) {
    (void)state;
    static FixtureSettings settings = {"model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=64", "model.ffn=32",
        "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "model.qkv_bias=true",
        "model.auxiliary_scope=model"};
    Fixture f;
    HfModel model;
    Error error = {0};
    StoredTensor tensors[TENSORS];
    size_t count = 0;
    start(&f, settings);
    for (int i = 0; i < f.model.graph->parameter_count; i++) {
        const Parameter *p = &f.model.graph->parameters[i];
        float *values = parameter_in(p, (void *)f.export.master);
        if (p->kind == PARAMETER_BALANCE_BIAS) continue;
        if (p->rank == 3) {
            count += put_mxfp4(&tensors[count], p, values);
            continue;
        }
        float *stored = memory_allocate((size_t)p->count * sizeof *stored);
        if (hf_reorders(p)) hf_reorder(p, (const char *)values, (char *)stored, sizeof *stored);
        else memcpy(stored, values, (size_t)p->count * sizeof *stored);
        tensors[count] = (StoredTensor){.name = memory_copy_string(p->name), .type = STORED_F32, .rank = p->rank, .data = stored};
        memcpy(tensors[count++].shape, p->shape, sizeof p->shape);
    }
    SCOPED_FREE char *path = path_of(&f, "model.safetensors");
    assert_true(safetensors_write(path, tensors, count, NULL, &error));
    edit_json(&f, "config.json", "quantization_config", "{\"quant_method\": \"mxfp4\"}");
    edit_json(&f, "config.json", "dtype", NULL);
    if (!hf_read(f.out, &model, &error)) fail_msg("%s", error.message);
    assert_int_equal(model.precision, PRECISION_BF16);
    hf_release(&model);
    SCOPED_FREE float *master = load_good(&f);
    assert_same_weights(&f, master);
    f.export.mxfp4 = true; /* these numbers are exact, whatever the power of two */
    if (!hf_write(&f.export, f.out, true, &error)) fail_msg("%s", error.message);
    SCOPED_FREE float *again = load_good(&f);
    assert_same_weights(&f, again);
    for (size_t i = 0; i < count; i++)
        if (tensors[i].type == STORED_U8 && tensors[i].rank == 4) tensors[i].type = STORED_F8_E4M3;
    assert_true(safetensors_write(path, tensors, count, NULL, &error));
    assert_load_refused(&f, "model.safetensors", "values in MXFP4 must be U8");
    for (size_t i = 0; i < count; i++) free((char *)tensors[i].name), free((void *)tensors[i].data);
    fixture_stop(&f);
}

static void a_matrix_in_fp8_needs_its_scales(void **state) {
    (void)state;
    enum { SIDE = 32, ONE_IN_E4M3 = 0x38 };
    static const char name[] = "model.layers.0.self_attn.q_proj.weight", scales[] = "model.layers.0.self_attn.q_proj.weight_scale_inv";
    static const float scale[] = {0.5f, 2};
    uint8_t values[SIDE * SIDE];
    Fixture f;
    start(&f, llama);
    memset(values, ONE_IN_E4M3, sizeof values);
    for (int pass = 0; pass < 3; pass++) {
        Edit edit;
        edit_open(&f, &edit);
        StoredTensor *matrix = edit_find(&edit, name);
        matrix->type = STORED_F8_E4M3, matrix->data = values;
        if (pass == 1)
            edit.tensors[edit.count++] = (StoredTensor){.name = scales, .type = STORED_F32, .rank = 2, .shape = {1, 2}, .data = scale};
        if (pass == 2) edit_find(&edit, scales)->shape[1] = 1;
        edit_write(&f, &edit);
        if (pass < 2)
            assert_load_refused(&f, "model.safetensors", pass ? "weight_scale_inv has shape [1, 2]" : "FP8 weight_scale_inv missing");
    }
    SCOPED_FREE float *master = load_good(&f);
    int query = find_parameter(f.model.graph, name);
    const float *read = parameter_in(&f.model.graph->parameters[query], master);
    for (int i = 0; i < SIDE * SIDE; i++) assert_true(read[i] == 0.5f);
    fixture_stop(&f);
}

/* Blocks whose largest number is 7.9, above e2m1's 6, times 1 and 2^-9. Numbers between two others go to the even one. */
static void numbers_round_to_the_nearest_of_mxfp4(void **state) {
    (void)state;
    static const struct {
        float from, to;
    } cases[] = {{7.9f, 6}, {1, 1}, {5, 4}, {-5.1f, -6}, {0.25f, 0}, {0.26f, 0.5f}, {-0.75f, -1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2},
        {3.5f, 4}, {-3.4f, -3}, {0, 0}};
    static FixtureSettings settings = {"model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=32",
        "model.layers=1", "model.experts=2", "model.renormalise=true"};
    Fixture f;
    Error error = {0};
    fixture_start(&f, settings, PRECISION_FP32);
    f.export.mxfp4 = true;
    int down = find_parameter(f.model.graph, "model.layers.0.mlp.experts.down_proj");
    float *values = parameter_in(&f.model.graph->parameters[down], (void *)f.export.master);
    memset(values, 0, 2 * FP4_BLOCK * sizeof *values);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) values[i] = cases[i].from, values[FP4_BLOCK + i] = ldexpf(cases[i].from, -9);
    if (!hf_write(&f.export, f.out, false, &error)) fail_msg("%s", error.message);
    SCOPED_FREE float *master = load_good(&f);
    const float *read = parameter_in(&f.model.graph->parameters[down], master);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_float_equal(read[i], cases[i].to, 0);
        assert_float_equal(read[FP4_BLOCK + i], ldexpf(cases[i].to, -9), 0);
    }
    values[3] = NAN;
    assert_false(hf_write(&f.export, f.out, true, &error));
    assert_int_equal(error.code, ERROR_NUMERICS);
    fixture_stop(&f);
    fixture_start(&f, llama, PRECISION_FP32);
    f.export.mxfp4 = true;
    assert_false(hf_write(&f.export, f.out, false, &error));
    assert_mentions(error.message, "dtype=mxfp4 LlamaForCausalLM dtype=same");
    fixture_stop(&f);
}

/* What transformers wrote for these folders, with fields that say nothing of numbers and one that nobody knows. */
static void a_copy_of_a_folder_keeps_every_field(void **state) {
    (void)state;
    static const char *const folders[] = {"zaya", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "mpt", "gpt2", "olmoe",
        "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "smollm3", "phi3", "granite", "granitemoe", "glm4_moe",
        "minimax_m2", "glm4_moe_lite", "ministral3", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        HfModel model;
        Error error = {0};
        char *path = memory_format("tests/golden/%s", folders[i]);
        if (!hf_read(path, &model, &error)) fail_msg("%s", error.message);
        json_object_set_new(model.content, "nobody_knows", json_pack("[i]", 7));
        json_object_set_new(model.content, "bos_token_id", json_integer(2));
        HfExport export = {.config = &model.config, .precision = PRECISION_FP32, .keep = true, .origin = model.content};
        json_t *written = hf_config(&export);
        if (!json_equal(written, model.content)) fail_msg("%s: %s", path, json_dumps(written, 0));
        json_decref(written);
        hf_release(&model);
        free(path);
    }
}

static void fields_that_nobody_knows_are_warned_of_by_name(void **state) {
    (void)state;
    Fixture f;
    HfModel model;
    Error error = {0};
    start(&f, llama);
    edit_json(&f, "config.json", "nobody_knows", "7");
    assert_true(hf_read(f.out, &model, &error));
    assert_non_null(strstr(model.warnings, "class does not have: nobody_knows"));
    hf_release(&model);
    fixture_stop(&f);
}

static void fields_that_files_leave_out_have_the_defaults_of_their_class(void **state) {
    (void)state;
    Fixture f;
    HfModel model;
    Error error = {0};
    start(&f, llama);
    const char *const absent[] = {
        "num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "tie_word_embeddings", "rms_norm_eps", "dtype"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) edit_json(&f, "config.json", absent[i], NULL);
    assert_true(hf_read(f.out, &model, &error));
    assert_int_equal(model.config.kv_heads, 4);
    assert_int_equal(model.config.head_dim, 8);
    assert_true(model.config.rope_theta == 10000 && model.config.rope_factor == 1 && model.config.norm_epsilon == 1e-6);
    assert_false(model.config.tied);
    hf_release(&model);
    fixture_stop(&f);
}

/* transformers counts two choices per token where smelt's shares sum to 1. */
static void the_weight_of_mixtrals_router_loss_means_the_same(void **state) {
    (void)state;
    Fixture f;
    HfModel model;
    Error error = {0};
    start(&f, mixtral);
    edit_json(&f, "config.json", "router_aux_loss_coef", "0.03");
    assert_true(hf_read(f.out, &model, &error));
    assert_true(fabs(model.config.auxiliary_loss - 0.06) < 1e-12);
    assert_int_equal(model.config.auxiliary_scope, AUXILIARY_MODEL);
    hf_release(&model);
    fixture_stop(&f);
}

/* Layers 0, 2 and 3 of four have experts, then layers 2 and 3. */
static void layers_with_experts_have_even_distances(void **state) {
    (void)state;
    static const struct {
        const char *dense;
        int64_t first; /* -1: refused */
    } cases[] = {{"[1]", -1}, {"[0, 1, 9]", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        SCOPED(hf_release) HfModel model = {0};
        Error error = {0};
        start(&f, qwen3_moe);
        edit_json(&f, "config.json", "decoder_sparse_step", "1");
        edit_json(&f, "config.json", "mlp_only_layers", cases[i].dense);
        bool read = hf_read(f.out, &model, &error);
        assert_int_equal(read, cases[i].first >= 0);
        if (read) assert_int_equal(model.config.experts_first, cases[i].first);
        else assert_mentions(error.message, "mlp_only_layers decoder_sparse_step every Nth layer");
        fixture_stop(&f);
    }
}

static void what_our_models_cannot_compute_is_refused_by_field(void **state) {
    (void)state;
    const struct {
        const char *const *settings;
        const char *key, *value, *message;
    } cases[] = {
        {llama, "model_type", "\"gemma\"", "model_type is \"gemma\""},
        {llama, "model_type", "\"qwe\\n3\"", "model_type is \"qwe\\n3\", smelt"},
        {llama, "model_type", "[]", "model_type is missing"},
        {llama, "hidden_size", "\"32\"", "hidden_size is not an integer"},
        {llama, "hidden_size", "-32", "hidden_size is less than 1"},
        {mpt, "logit_scale", "\"sqrt\"", "logit_scale"},
        {mpt, "logit_scale", "0", "logit_scale"},
        {gpt2, "n_embd", "8192", "model.head_dim would be 2048"},
        {llama, "vocab_size", "1000000000000000", "model.vocabulary would be 1e+15"},
        {llama, "num_hidden_layers", "0", "num_hidden_layers is less than 1"},
        {llama, "num_key_value_heads", "3", "num_attention_heads, num_key_value_heads: model.heads=4"},
        {llama, "rms_norm_eps", "null", "rms_norm_eps is not a number"},
        {llama, "rms_norm_eps", "0", "model.norm_epsilon would be 0"},
        {llama, "rms_norm_eps", "true", "rms_norm_eps is not a number"},
        {llama, "hidden_act", "\"gelu\"", "hidden_act is \"gelu\", smelt silu"},
        {llama, "attention_bias", "true", "attention_bias is true"},
        {llama, "mlp_bias", "1", "mlp_bias is 1"},
        {llama, "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}", ""},
        {llama, "rope_scaling", "{\"type\": \"linear\", \"factor\": 4}", ""},
        {llama, "rope_scaling", "{\"type\": \"su\", \"factor\": 4}", "rope_scaling.rope_type RoPE scaling"},
        {llama, "rope_scaling", "{\"type\": \"longrope\", \"factor\": 4}", "rope_scaling.short_factor is missing"},
        {llama, "rope_scaling", "{\"type\": \"longrope\", \"factor\": 4, \"short_factor\": [1], \"long_factor\": [1, 2, 3, 1e9]}",
            "model.rope_long_factors would be 1e+09"},
        {llama, "rope_scaling", "{\"type\": \"longrope\", \"factor\": 4, \"short_factor\": [1], \"long_factor\": [1, 2, 3, 4]}",
            "model.rope_short_factors 1 and 4 numbers longrope needs 4"},
        {llama, "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 4}", "low_freq_factor is missing"},
        {llama, "rope_scaling", "[1]", "rope_scaling is not an object"},
        {llama, "quantization_config", "{}",
            "quantization_config says that weights are quantized (no quant_method), smelt F32, BF16, F16, and FP8"},
        {qwen2, "layer_types", "[\"sliding_attention\"]", "layer_types \"sliding_attention\""},
        {mpt, "attn_config", "{\"alibi\": false}", "alibi is false"},
        {mpt, "attn_config", "{\"attn_type\": \"multiquery_attention\", \"prefix_lm\": true}", "prefix_lm is true"},
        {mpt, "no_bias", "false", "no_bias is false"},
        {mpt, "expansion_ratio", "1000000000000000000", "expansion_ratio is too large"},
        {gpt2, "activation_function", "\"relu\"", "activation_function is \"relu\""},
        {gpt2, "scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx is true"},
        {gpt2, "n_embd", "0", "n_embd is less than 1"},
        {gpt2, "hidden_size", "0", "hidden_size is less than 1"},
        {mixtral, "num_local_experts", "0", "num_local_experts is less than 1"},
        {mixtral, "num_experts_per_tok", "4", "model.experts_per_token=4"},
        {qwen3_moe, "decoder_sparse_step", "0", "decoder_sparse_step is not an integer of at least 1"},
        {qwen3_moe, "decoder_sparse_step", "5", "mlp_only_layers decoder_sparse_step no layer experts"},
        {qwen3_moe, "mlp_only_layers", "[1, 3]", "mlp_only_layers decoder_sparse_step no layer experts"},
        {qwen3_moe, "mlp_only_layers", "[\"1\"]", "mlp_only_layers is not a list of layers"},
        {deepseek_v2, "topk_method", "\"noaux_tc\"", "topk_method"},
        {deepseek_v2, "norm_topk_prob", "true", "norm_topk_prob is true"},
        {deepseek_v2, "first_k_dense_replace", "3", "first_k_dense_replace leaves no layer with experts"},
        {deepseek_v2, "n_group", "4", "n_group model.expert_groups=4 model.experts=6"},
        {deepseek_v2, "num_key_value_heads", "2", "num_key_value_heads model.kv_heads=2"},
        {deepseek_v3, "model_type", "\"kimi_k2\"", ""},
        {deepseek_v3, "head_dim", "8", "head_dim differs from qk_rope_head_dim"},
        {deepseek_v3, "n_group", "4", "n_group model.expert_groups=4 one expert per group"},
        {deepseek_v3, "scoring_func", "\"softmax\"", "scoring_func is"},
        {deepseek_v3, "moe_layer_freq", "2", "moe_layer_freq is 2"},
        {deepseek_v3, "attention_bias", "true", "attention_bias is true"},
        {olmoe, "clip_qkv", "0.0", "clip_qkv is not a positive real number"},
        {olmoe, "sliding_window", "8", "sliding_window is 8"},
        {olmo3, "sliding_window", "null", "sliding_window is null"},
        {olmo3, "layer_types", "[\"full_attention\", \"full_attention\", \"sliding_attention\", \"sliding_attention\"]",
            "layer_types even distances"},
        {olmo3, "rope_parameters", "{\"rope_type\": \"default\"}", "rope_parameters full_attention sliding_attention"},
        {olmo3, "rope_parameters", "{\"full_attention\": {}, \"sliding_attention\": {\"rope_type\": \"linear\", \"factor\": 2}}",
            "rope_parameters scales RoPE sliding_attention"},
        {gpt_oss, "sliding_window", "null", "sliding_window is null"},
        {llama, "quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", ""},
        {llama, "quantization_config", "{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}",
            "quantization_config (fp8) 128 x 128"},
        {gpt_oss, "quantization_config", "{\"quant_method\": \"fp8\"}", "quantization_config weights are quantized (fp8)"},
        {gemma2, "final_logit_softcapping", "30", "final_logit_softcapping is not a positive real number"},
        {gemma2, "attn_logit_softcapping", "0.0", "attn_logit_softcapping is not a positive real number"},
        {gemma3, "query_pre_attn_scalar", "0", "query_pre_attn_scalar is not an integer of at least 1"},
        {gemma3, "final_logit_softcapping", "30.0", "final_logit_softcapping is 30"},
        {gemma3, "sliding_window_pattern", "0", "sliding_window_pattern is not an integer of at least 1"},
        {gemma3, "rope_local_base_freq", "\"1\"", "rope_local_base_freq is not a number"},
        {smollm3, "no_rope_layers", "[1, 0, 0, 1, 1, 1]", "no_rope_layers every Nth"},
        {smollm3, "no_rope_layers", "[1, 0]", "no_rope_layers per layer"},
        {smollm3, "use_sliding_window", "false", "layer_types use_sliding_window"},
        {smollm3, "mlp_bias", "true", "mlp_bias is true"},
        {phi3, "head_dim", "16", "head_dim model.head_dim=16"},
        {phi3, "rope_scaling", "{\"type\": \"linear\", \"factor\": 4}", "rope_scaling.rope_type RoPE scaling"},
        {granite, "attention_multiplier", "0", "attention_multiplier is not a positive number"},
        {granite, "residual_multiplier", "0", "residual_multiplier model.residual_scale would be 0"},
        {granite, "mlp_bias", "true", "mlp_bias is true"},
        {granitemoe, "logits_scaling", "null", "logits_scaling is not a number"},
        {glm4_moe, "first_k_dense_replace", "3", "first_k_dense_replace leaves no layer with experts"},
        {glm4_moe, "n_group", "3", "n_group model.expert_groups=3 model.experts=4"},
        {minimax_m2, "output_router_logits", "true", "output_router_logits is true"},
        {minimax_m2, "rotary_dim", "5", "partial_rotary_factor rotates 5 of 12 channels"},
        {qwen3_5, "layer_types", "[\"linear_attention\"]", "layer_types num_hidden_layers"},
        {qwen3_5, "layer_types", "[\"linear_attention\", \"sliding_attention\", \"full_attention\"]",
            "layer_types \"full_attention\" and \"linear_attention\""},
        {qwen3_5, "layer_types", "[\"full_attention\", \"linear_attention\", \"full_attention\"]",
            "layer_types \"full_attention\" every Nth"},
        {qwen3_5, "linear_num_key_heads", "3", "linear_num_value_heads, linear_num_key_heads: model.delta_key_heads=3"},
        {qwen3_5, "linear_key_head_dim", "129", "linear_key_head_dim model.delta_key_dim"},
        {qwen3_5_moe, "shared_expert_intermediate_size", "17", "shared_expert_intermediate_size moe_intermediate_size"},
        {qwen3_next, "linear_num_key_heads", "3", "linear_num_value_heads, linear_num_key_heads: model.delta_key_heads=3"},
        {qwen3_next, "decoder_sparse_step", "5", "mlp_only_layers decoder_sparse_step no layer experts"},
        {qwen3_next, "num_experts", "0", "num_experts is less than 1"},
        {ministral3, "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}", "llama_4_scaling_beta is missing"},
        {ministral3, "rope_scaling", "{\"rope_type\": \"linear\", \"factor\": 4, \"llama_4_scaling_beta\": 0.1}", "rope_type is linear"},
        {qwen3_moe, "use_sliding_window", "1", "use_sliding_window is not true or false"},
        {zaya, "layer_types", "[\"hybrid\", \"hybrid_sliding\"]", "sliding_window is missing"},
        {zaya, "layer_types", "[\"hybrid\"]", "layer_types num_hidden_layers"},
        {zaya, "layer_types", "[\"mamba\", \"mamba\"]", "layer_types hybrid"},
        {zaya, "layer_types", "[\"hybrid_sliding\", \"hybrid_sliding\"]", "sliding_window is missing"},
        {zaya, "num_experts_per_tok", "2", "num_experts_per_tok is 2"},
        {zaya, "cca_time0", "4", "cca_time0 is 4"},
        {zaya, "zaya_layers", "[\"a\", 3, 3, \"a\"]", "zaya_layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        HfModel model;
        Error error = {0};
        start(&f, cases[i].settings);
        edit_json(&f, "config.json", cases[i].key, cases[i].value);
        bool read = hf_read(f.out, &model, &error);
        if (cases[i].message[0]) {
            assert_false(read);
            assert_error(&error, "out/config.json: ", cases[i].message);
        } else {
            assert_true(read);
            hf_release(&model);
        }
        fixture_stop(&f);
    }
}

static void a_file_that_is_not_json_is_named_with_its_line(void **state) {
    (void)state;
    const char *const contents[] = {"", "{\"hidden_size\": 4,\n}", "[1", "\xff", "7"};
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        Fixture f;
        HfModel model;
        Error error = {0};
        start(&f, llama);
        char *path = path_of(&f, "config.json");
        assert_true(file_write(path, contents[i], strlen(contents[i]), &error));
        assert_false(hf_read(f.out, &model, &error));
        assert_error(&error, "config.json", "JSON");
        free(path);
        fixture_stop(&f);
    }
}

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

static void weights_come_back_bit_for_bit(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        Fixture f;
        start(&f, models[i]);
        float *master = load_good(&f);
        assert_same_weights(&f, master);
        free(master);
        fixture_stop(&f);
    }
}

static char *read_file(const char *folder, const char *name, size_t *length) {
    char *path = memory_format("%s/%s", folder, name), *content = (char *)read_bytes(path, length);
    free(path);
    return content;
}

static void a_folder_that_is_read_and_written_again_is_the_same_byte_for_byte(void **state) {
    (void)state;
    for (int i = 0; i < 2 * MODELS; i++) {
        Fixture f;
        Error error = {0};
        size_t before, after;
        start_sharded(&f, models[i / 2], i % 2 ? PRECISION_BF16 : PRECISION_FP32, 0);
        float *master = load_good(&f);
        char *again = memory_format("%s/again", f.folder);
        HfExport export = f.export;
        export.master = master;
        assert_true(hf_write(&export, again, false, &error));
        char *first = read_file(f.out, "model.safetensors", &before), *second = read_file(again, "model.safetensors", &after);
        assert_int_equal(before, after);
        assert_memory_equal(first, second, before);
        free(second);
        free(first);
        free(again);
        free(master);
        fixture_stop(&f);
    }
}

static void shards_are_bounded_listed_and_read_back(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        const int64_t limit = 9000;
        Fixture f;
        start_sharded(&f, models[i], PRECISION_FP32, limit);
        char *path = path_of(&f, "model.safetensors.index.json");
        json_t *index = json_load_file(path, 0, NULL), *value;
        const char *name;
        assert_non_null(index);
        assert_int_not_equal(access("model.safetensors", F_OK), 0);
        assert_true(json_object_size(json_object_get(index, "weight_map")) > 10);
        json_object_foreach(json_object_get(index, "weight_map"), name, value) {
            Safetensors file;
            Error error = {0};
            char *shard = path_of(&f, json_string_value(value));
            assert_true(safetensors_open(&file, shard, &error));
            assert_non_null(safetensors_find(&file, name));
            assert_true(file.count == 1 || (int64_t)file.map.size < limit + 8192);
            safetensors_close(&file);
            free(shard);
        }
        float *master = load_good(&f);
        assert_same_weights(&f, master);
        free(master);
        json_decref(index);
        free(path);
        fixture_stop(&f);
    }
}

static void overwriting_shards_with_one_file_leaves_none_of_them(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    start_sharded(&f, llama, PRECISION_FP32, 9000);
    f.export.shard_bytes = 0;
    assert_true(hf_write(&f.export, f.out, true, &error));
    char *path = path_of(&f, "model.safetensors.index.json");
    assert_int_not_equal(access(path, F_OK), 0);
    free(path);
    fixture_stop(&f);
}

/* 1, the least subnormal, -0, the greatest number, -2. */
static void halves_become_the_floats_of_the_same_value(void **state) {
    (void)state;
    const uint16_t halves[] = {0x3c00, 0x0001, 0x8000, 0x7bff, 0xc000};
    const float floats[] = {1, 0x1p-24f, -0.0f, 65504, -2};
    Fixture f;
    Edit edit;
    uint16_t values[32] = {0};
    start(&f, llama);
    edit_open(&f, &edit);
    StoredTensor *tensor = edit_find(&edit, "model.norm.weight");
    memcpy(values, halves, sizeof halves);
    tensor->type = STORED_F16;
    tensor->data = values;
    edit_write(&f, &edit);
    float *master = load_good(&f);
    const Parameter *p = &f.model.graph->parameters[find_parameter(f.model.graph, "model.norm.weight")];
    assert_memory_equal(parameter_in(p, master), floats, sizeof floats);
    free(master);
    fixture_stop(&f);
}

static void doubles_hold_what_the_file_says(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    start(&f, zaya);
    Model wide = model_build(&f.config.model, PRECISION_FP64, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    double *master = memory_allocate(wide.graph->parameter_bytes);
    assert_true(hf_load_weights(f.out, &f.config.model, wide.graph, master, &error));
    for (int i = 0; i < wide.graph->parameter_count; i++) {
        const double *doubles = parameter_in(&wide.graph->parameters[i], master);
        const float *floats = parameter_in(&f.model.graph->parameters[i], f.export.master);
        for (int64_t j = 0; j < wide.graph->parameters[i].count; j++) assert_true(doubles[j] == floats[j]);
    }
    free(master);
    model_free(&wide);
    fixture_stop(&f);
}

/* As OpenAI's: without the leading name, matrices [in, out], and with the mask of attention as a buffer. */
static void gpt2_folders_may_lack_the_leading_name(void **state) {
    (void)state;
    Fixture f;
    Edit edit;
    static const char trunk[] = "transformer.";
    start(&f, gpt2);
    edit_open(&f, &edit);
    assert_int_equal(edit_find(&edit, "transformer.h.0.mlp.c_fc.weight")->shape[1], 40);
    for (size_t i = 0; i < edit.count; i++) edit.tensors[i].name += strlen(trunk);
    edit.tensors[edit.count++] = (StoredTensor){.name = "h.1.attn.bias", .rank = 1, .shape = {2}, .data = (float[]){1, 1}};
    edit_write(&f, &edit);
    float *master = load_good(&f);
    assert_same_weights(&f, master);
    free(master);
    fixture_stop(&f);
}

static void a_missing_tensor_is_named_with_its_file(void **state) {
    (void)state;
    Fixture f;
    Edit edit;
    start(&f, llama);
    edit_open(&f, &edit);
    *edit_find(&edit, "lm_head.weight") = edit.tensors[--edit.count];
    edit_write(&f, &edit);
    assert_load_refused(&f, "out/model.safetensors: ", "lm_head.weight");
    fixture_stop(&f);
}

static void a_superfluous_tensor_is_named_with_its_file(void **state) {
    (void)state;
    Fixture f;
    Edit edit;
    start(&f, llama);
    edit_open(&f, &edit);
    edit.tensors[edit.count++] = (StoredTensor){.name = "model.extra", .rank = 0, .data = (float[]){1}};
    edit_write(&f, &edit);
    assert_load_refused(&f, "out/model.safetensors: ", "model.extra");
    fixture_stop(&f);
}

/* A layer after the model's two is for prediction if it has the projection of such a layer. */
static void layers_for_multi_token_prediction_are_skipped(void **state) {
    (void)state;
    static const char *const names[] = {"model.layers.2.enorm.weight", "model.layers.2.eh_proj.weight"};
    for (int count = 1; count <= 2; count++) {
        Fixture f;
        Edit edit;
        start(&f, deepseek_v3);
        edit_open(&f, &edit);
        for (int i = 0; i < count; i++)
            edit.tensors[edit.count++] = (StoredTensor){.name = names[i], .type = STORED_F32, .rank = 0, .data = (float[]){1}};
        edit_write(&f, &edit);
        if (count == 2) free(load_good(&f));
        else assert_load_refused(&f, "out/model.safetensors: ", "model.layers.2.enorm.weight");
        fixture_stop(&f);
    }
}

/* Describes what smelt leaves out of a folder with these tensors beside the model's: "" if that is nothing. */
static void describe_unread(const char *const *settings, const char *const *names, char text[512]) {
    Fixture f;
    Edit edit;
    HfModel model;
    Error error = {0};
    start(&f, settings);
    edit_open(&f, &edit);
    for (int i = 0; names[i]; i++)
        edit.tensors[edit.count++] = (StoredTensor){.name = names[i], .type = STORED_F32, .rank = 0, .data = (float[]){1}};
    edit_write(&f, &edit);
    if (!hf_read(f.out, &model, &error)) fail_msg("%s", error.message);
    assert_int_equal(model.config.mtp, settings == deepseek_v3_mtp && !names[0]);
    snprintf(text, 512, "%s", model.unread ? model.unread : "");
    hf_release(&model);
    fixture_stop(&f);
}

static void unread_tensors_for_multi_token_prediction_are_named(void **state) {
    (void)state;
    char text[512];
    static const char *const none[] = {NULL}, *const own[] = {"mtp.fc.weight", "mtp.norm.weight", NULL};
    static const char *const second[] = {"model.layers.3.eh_proj.weight", NULL};
    describe_unread(qwen3_5, none, text);
    assert_string_equal(text, "");
    describe_unread(deepseek_v3_mtp, none, text);
    assert_string_equal(text, "");
    describe_unread(qwen3_next, own, text);
    if (!mentions(text, "2 tensors mtp.fc.weight not read") || strstr(text, "one such layer")) fail_msg("%s", text);
    describe_unread(deepseek_v3_mtp, second, text);
    if (!mentions(text, "model.layers.2. not read one such layer")) fail_msg("%s", text);
}

/* The layer has copies of the embedding and the head, as DeepSeek publishes it. */
static void a_layer_for_multi_token_prediction_shares_embedding_and_head(void **state) {
    (void)state;
    static const char *const copies[][2] = {
        {"model.layers.2.embed_tokens.weight", "model.embed_tokens.weight"}, {"model.layers.2.shared_head.head.weight", "lm_head.weight"}};
    for (int i = 0; i < 2; i++) {
        Fixture f;
        Edit edit;
        start(&f, deepseek_v3_mtp);
        edit_open(&f, &edit);
        StoredTensor *copy = edit_find(&edit, copies[i][0]), *of = edit_find(&edit, copies[i][1]);
        int64_t count = of->shape[0] * of->shape[1];
        assert_memory_equal(copy->data, of->data, (size_t)count * sizeof(float));
        SCOPED_FREE float *changed = memory_allocate((size_t)count * sizeof *changed);
        memcpy(changed, of->data, (size_t)count * sizeof *changed);
        changed[count - 1] += 1;
        copy->data = changed;
        edit_write(&f, &edit);
        assert_load_refused(&f, copies[i][0], "differs from the model's model.mtp=0 mtp=false");
        fixture_stop(&f);
    }
}

/* As a training with model.mtp=0 reads it. */
static void a_layer_for_multi_token_prediction_can_be_left_out(void **state) {
    (void)state;
    Fixture f;
    HfModel model;
    Error error = {0};
    start(&f, deepseek_v3_mtp);
    assert_true(hf_read(f.out, &model, &error));
    assert_int_equal(model.config.mtp, 1);
    model.config.mtp = 0;
    Model smaller = model_describe(&model.config, NULL, PRECISION_FP32);
    assert_true(smaller.graph->parameter_count < f.model.graph->parameter_count);
    SCOPED_FREE float *master = memory_allocate((size_t)smaller.graph->parameter_bytes);
    if (!hf_load_weights(f.out, &model.config, smaller.graph, master, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < smaller.graph->parameter_count; i++) {
        const Parameter *p = &smaller.graph->parameters[i], *q = &f.model.graph->parameters[i];
        assert_string_equal(p->name, q->name);
        assert_memory_equal(parameter_in(p, (char *)master), parameter_in(q, f.export.master), (size_t)p->count * sizeof(float));
    }
    model_free(&smaller);
    hf_release(&model);
    fixture_stop(&f);
}

static void another_shape_is_reported_with_the_one_that_is_asked_for(void **state) {
    (void)state;
    Fixture f;
    Edit edit;
    start(&f, llama);
    edit_open(&f, &edit);
    StoredTensor *tensor = edit_find(&edit, "model.layers.1.mlp.down_proj.weight");
    tensor->shape[0] = 40;
    tensor->shape[1] = 32;
    edit_write(&f, &edit);
    assert_load_refused(&f, "model.layers.1.mlp.down_proj.weight has shape [40, 32]", "requires [32, 40]");
    fixture_stop(&f);
}

static void tensors_of_integers_are_refused(void **state) {
    (void)state;
    Fixture f;
    Edit edit;
    start(&f, llama);
    edit_open(&f, &edit);
    edit_find(&edit, "model.norm.weight")->type = STORED_I32;
    edit_write(&f, &edit);
    assert_load_refused(&f, "tensor model.norm.weight", "has type I32");
    fixture_stop(&f);
}

static void a_file_that_ends_early_is_refused(void **state) {
    (void)state;
    Fixture f;
    start(&f, llama);
    char *path = path_of(&f, "model.safetensors");
    assert_int_equal(truncate(path, 20000), 0);
    assert_load_refused(&f, "out/model.safetensors", "truncated");
    free(path);
    fixture_stop(&f);
}

static void a_tied_head_may_repeat_the_embedding_but_not_differ_from_it(void **state) {
    (void)state;
    Fixture f;
    Edit edit;
    start(&f, mistral);
    edit_open(&f, &edit);
    StoredTensor head = *edit_find(&edit, "model.embed_tokens.weight");
    head.name = "lm_head.weight";
    edit.tensors[edit.count++] = head;
    edit_write(&f, &edit);
    free(load_good(&f));
    float *other = memory_allocate(320 * 32 * sizeof *other);
    edit_open(&f, &edit);
    edit_find(&edit, "lm_head.weight")->data = other;
    edit_write(&f, &edit);
    free(other);
    assert_load_refused(&f, "tensor lm_head.weight", "embedding");
    fixture_stop(&f);
}

static void what_the_index_says_must_be_so(void **state) {
    (void)state;
    const struct {
        const char *key, *value, *first, *second;
    } cases[] = {
        {"weight_map", "{}", "index.json", "no weight_map"},
        {"weight_map", "7", "index.json", "no weight_map"},
        {"weight_map", "{\"model.norm.weight\": \"../out/model.safetensors\"}", "tensor model.norm.weight", "file of this folder"},
        {"weight_map", "{\"model.norm.weight\": 3}", "tensor model.norm.weight", "file of this folder"},
        {"weight_map", "{\"model.norm\\n.weight\": \"one.safetensors\"}", "index.json", "a control character"},
        {"weight_map", "{\"model.norm.weight\": \"one\\u001b.safetensors\"}", "index.json", "a control character"},
        {"weight_map", "{\"model.norm.weight\": \"absent.safetensors\"}", "absent.safetensors", "cannot open"},
        {"weight_map", "{\"model.nose.weight\": \"one.safetensors\"}", "out/one.safetensors: tensor model.nose.weight", "is missing"},
        {"weight_map", "{\"model.norm.weight\": \"one.safetensors\"}", "out/one.safetensors: tensor ", "is not in the index"},
        {"weight_map", "{\"model.norm.weight\": \"one.safetensors\", \"lm_head.weight\": \"two.safetensors\"}",
            "tensor lm_head.weight is also in", "one.safetensors"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        Error error = {0};
        size_t length;
        start(&f, llama);
        char *index = path_of(&f, "model.safetensors.index.json"), *one = path_of(&f, "one.safetensors"),
             *two = path_of(&f, "two.safetensors");
        char *whole = path_of(&f, "model.safetensors"), *content = read_file(f.out, "model.safetensors", &length);
        assert_true(file_write(index, "{}", 2, &error) && file_write(two, content, (int64_t)length, &error));
        assert_int_equal(rename(whole, one), 0);
        edit_json(&f, "model.safetensors.index.json", cases[i].key, cases[i].value);
        assert_load_refused(&f, cases[i].first, cases[i].second);
        free(content);
        free(whole);
        free(two);
        free(one);
        free(index);
        fixture_stop(&f);
    }
}

static void a_folder_without_weights_says_so(void **state) {
    (void)state;
    Fixture f;
    start(&f, llama);
    char *path = path_of(&f, "model.safetensors");
    assert_int_equal(unlink(path), 0);
    assert_load_refused(&f, "out has neither model.safetensors", "index.json");
    free(path);
    fixture_stop(&f);
}

/* From folders of either type; those of bf16 hold what is rounded already. */
static void matrices_can_be_read_in_bf16(void **state) {
    (void)state;
    for (int i = 0; i < 2 * MODELS; i++) {
        Fixture f;
        Error error = {0};
        start_sharded(&f, models[i / 2], i % 2 ? PRECISION_BF16 : PRECISION_FP32, 0);
        HfReader *reader = hf_reader_open(f.out, &f.config.model, f.model.graph, &error);
        assert_non_null(reader);
        for (int j = 0; j < f.model.graph->parameter_count; j++) {
            const Parameter *p = &f.model.graph->parameters[j];
            if (p->kind != PARAMETER_MATRIX && p->kind != PARAMETER_EMBEDDING && p->kind != PARAMETER_CONVOLUTION) continue;
            uint16_t *values = memory_allocate(2 * p->count * sizeof *values), *expected = values + p->count;
            hf_reader_load_bf16(reader, j, values);
            bf16_from_floats(expected, parameter_in(p, f.export.master), p->count);
            assert_memory_equal(values, expected, p->count * sizeof *values);
            free(values);
        }
        hf_reader_close(reader);
        fixture_stop(&f);
    }
}

/* -- From folder to folder ----------------------------------------------------------------------------------------- */

/* Writes the model of f->out to the folder `name` beside it, tensor by tensor; the caller frees the path. */
static char *rewrite(const Fixture *f, const char *name, bool keep, Precision precision) {
    Error error = {0};
    char *to = memory_format("%s/%s", f->folder, name);
    HfReader *reader = hf_reader_open(f->out, &f->config.model, f->model.graph, &error);
    HfExport export = f->export;
    export.master = NULL;
    export.reader = reader;
    export.keep = keep;
    export.precision = precision;
    if (!reader || !hf_write(&export, to, false, &error)) fail_msg("%s", error.message);
    hf_reader_close(reader);
    return to;
}

/* As convert does for runs: all weights in memory, then the folder. */
static char *rewrite_by_memory(const Fixture *f, const char *name, Precision precision) {
    Error error = {0};
    char *to = memory_format("%s/%s", f->folder, name);
    HfExport export = f->export;
    float *master = load_good(f);
    export.master = master;
    export.precision = precision;
    if (!hf_write(&export, to, false, &error)) fail_msg("%s", error.message);
    free(master);
    return to;
}

static void assert_same_file(const char *first, const char *second, const char *name) {
    size_t before, after;
    char *expected = read_file(first, name, &before), *content = read_file(second, name, &after);
    assert_int_equal(before, after);
    assert_memory_equal(expected, content, before);
    free(content);
    free(expected);
}

static void a_model_goes_from_folder_to_folder_as_it_does_through_memory(void **state) {
    (void)state;
    for (int i = 0; i < 4 * MODELS; i++) {
        Fixture f;
        Precision from = i & 1 ? PRECISION_BF16 : PRECISION_FP32, to = i & 2 ? PRECISION_BF16 : PRECISION_FP32;
        start_sharded(&f, models[i / 4], from, 0);
        char *direct = rewrite(&f, "direct", false, to), *through = rewrite_by_memory(&f, "through", to);
        assert_same_file(through, direct, "model.safetensors");
        assert_same_file(through, direct, "config.json");
        free(direct);
        free(through);
        fixture_stop(&f);
    }
}

/* A NaN with a payload of its own, which no conversion would leave as it is, and an fp16 and an fp32 tensor among
 * those of bf16. */
static void tensors_that_keep_their_types_keep_every_bit(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        Fixture f;
        Edit edit;
        uint16_t halves[4096];
        start_sharded(&f, models[i], PRECISION_BF16, 0);
        edit_open(&f, &edit);
        for (int j = 0; j < 4096; j++) halves[j] = (uint16_t)(j % 7 ? 0x3c00 + j : 0x0001); /* the smallest of fp16 too */
        int changed = 0;
        for (size_t j = 0; j < edit.count && !changed; j++)
            if (edit.tensors[j].rank == 1 && edit.tensors[j].type == STORED_BF16) {
                edit.tensors[j].type = STORED_F16;
                edit.tensors[j].data = halves;
                changed++;
            }
        assert_int_equal(changed, 1);
        edit_write(&f, &edit);
        char *again = rewrite(&f, "again", true, PRECISION_BF16), *path = memory_format("%s/model.safetensors", again),
             *first = path_of(&f, "model.safetensors");
        Safetensors before, after;
        Error error = {0};
        assert_true(safetensors_open(&before, first, &error) && safetensors_open(&after, path, &error));
        assert_int_equal(before.count, after.count);
        for (size_t j = 0; j < before.count; j++) {
            const StoredTensor *a = &before.tensors[j], *b = &after.tensors[j];
            int64_t elements = 1;
            for (int d = 0; d < a->rank; d++) elements *= a->shape[d];
            assert_string_equal(a->name, b->name);
            assert_int_equal(a->type, b->type);
            assert_memory_equal(a->data, b->data, elements * stored_type_bytes(a->type));
        }
        safetensors_close(&before);
        safetensors_close(&after);
        free(first);
        free(path);
        free(again);
        fixture_stop(&f);
    }
}

/* -- ZAYA1's first folders ----------------------------------------------------------------------------------------- */

/* Zyphra's names for the tensors of a model of two layers, three experts each. */
static const struct {
    const char *native, *legacy;
} legacy_names[] = {
    {"model.embed_tokens.weight", "model.embed_tokens.weight"},
    {"model.norm.weight", "model.final_norm.weight"},
    {"model.input_hidden_states_scale", "model.layers.0.res_scale.hidden_states_scale"},
    {"model.input_hidden_states_bias", "model.layers.0.res_scale.hidden_states_bias"},
    {"model.layers.0.input_layernorm.weight", "model.layers.0.input_norm.weight"},
    {"model.layers.0.self_attn.qkv_proj.q_proj.weight", "model.layers.0.self_attn.qkv.linear_q.weight"},
    {"model.layers.0.self_attn.qkv_proj.k_proj.weight", "model.layers.0.self_attn.qkv.linear_k.weight"},
    {"model.layers.0.self_attn.qkv_proj.v_proj_current.weight", "model.layers.0.self_attn.qkv.val_proj1.weight"},
    {"model.layers.0.self_attn.qkv_proj.v_proj_delayed.weight", "model.layers.0.self_attn.qkv.val_proj2.weight"},
    {"model.layers.0.self_attn.qkv_proj.conv_qk_depthwise.weight", "model.layers.0.self_attn.qkv.conv_qk.0.weight"},
    {"model.layers.0.self_attn.qkv_proj.conv_qk_depthwise.bias", "model.layers.0.self_attn.qkv.conv_qk.0.bias"},
    {"model.layers.0.self_attn.qkv_proj.conv_qk_grouped.weight", "model.layers.0.self_attn.qkv.conv_qk.1.weight"},
    {"model.layers.0.self_attn.qkv_proj.conv_qk_grouped.bias", "model.layers.0.self_attn.qkv.conv_qk.1.bias"},
    {"model.layers.0.self_attn.qk_norm.temp", "model.layers.0.self_attn.qkv.temp"},
    {"model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.o_proj.weight"},
    {"model.layers.0.post_attention_layernorm.weight", "model.layers.1.input_norm.weight"},
    {"model.layers.0.post_attention_residual_scale.hidden_states_scale", "model.layers.1.res_scale.hidden_states_scale"},
    {"model.layers.0.post_attention_residual_scale.hidden_states_bias", "model.layers.1.res_scale.hidden_states_bias"},
    {"model.layers.0.post_attention_residual_scale.residual_scale", "model.layers.1.res_scale.residual_scale"},
    {"model.layers.0.post_attention_residual_scale.residual_bias", "model.layers.1.res_scale.residual_bias"},
    {"model.layers.0.post_mlp_residual_scale.hidden_states_scale", "model.layers.2.res_scale.hidden_states_scale"},
    {"model.layers.0.post_mlp_residual_scale.hidden_states_bias", "model.layers.2.res_scale.hidden_states_bias"},
    {"model.layers.0.post_mlp_residual_scale.residual_scale", "model.layers.2.res_scale.residual_scale"},
    {"model.layers.0.post_mlp_residual_scale.residual_bias", "model.layers.2.res_scale.residual_bias"},
    {"model.layers.1.input_layernorm.weight", "model.layers.2.input_norm.weight"},
    {"model.layers.1.self_attn.qkv_proj.q_proj.weight", "model.layers.2.self_attn.qkv.linear_q.weight"},
    {"model.layers.1.self_attn.qkv_proj.k_proj.weight", "model.layers.2.self_attn.qkv.linear_k.weight"},
    {"model.layers.1.self_attn.qkv_proj.v_proj_current.weight", "model.layers.2.self_attn.qkv.val_proj1.weight"},
    {"model.layers.1.self_attn.qkv_proj.v_proj_delayed.weight", "model.layers.2.self_attn.qkv.val_proj2.weight"},
    {"model.layers.1.self_attn.qkv_proj.conv_qk_depthwise.weight", "model.layers.2.self_attn.qkv.conv_qk.0.weight"},
    {"model.layers.1.self_attn.qkv_proj.conv_qk_depthwise.bias", "model.layers.2.self_attn.qkv.conv_qk.0.bias"},
    {"model.layers.1.self_attn.qkv_proj.conv_qk_grouped.weight", "model.layers.2.self_attn.qkv.conv_qk.1.weight"},
    {"model.layers.1.self_attn.qkv_proj.conv_qk_grouped.bias", "model.layers.2.self_attn.qkv.conv_qk.1.bias"},
    {"model.layers.1.self_attn.qk_norm.temp", "model.layers.2.self_attn.qkv.temp"},
    {"model.layers.1.self_attn.o_proj.weight", "model.layers.2.self_attn.o_proj.weight"},
    {"model.layers.1.post_attention_layernorm.weight", "model.layers.3.input_norm.weight"},
    {"model.layers.1.post_attention_residual_scale.hidden_states_scale", "model.layers.3.res_scale.hidden_states_scale"},
    {"model.layers.1.post_attention_residual_scale.hidden_states_bias", "model.layers.3.res_scale.hidden_states_bias"},
    {"model.layers.1.post_attention_residual_scale.residual_scale", "model.layers.3.res_scale.residual_scale"},
    {"model.layers.1.post_attention_residual_scale.residual_bias", "model.layers.3.res_scale.residual_bias"},
    {"model.layers.1.post_mlp_residual_scale.hidden_states_scale", "model.res_scale.hidden_states_scale"},
    {"model.layers.1.post_mlp_residual_scale.hidden_states_bias", "model.res_scale.hidden_states_bias"},
    {"model.layers.1.post_mlp_residual_scale.residual_scale", "model.res_scale.residual_scale"},
    {"model.layers.1.post_mlp_residual_scale.residual_bias", "model.res_scale.residual_bias"},
    {"model.layers.0.mlp.gate.down_proj.weight", "model.layers.1.zaya_block.router.down_proj.weight"},
    {"model.layers.0.mlp.gate.down_proj.bias", "model.layers.1.zaya_block.router.down_proj.bias"},
    {"model.layers.0.mlp.gate.router_mlp.norm.weight", "model.layers.1.zaya_block.router.rmsnorm_eda.weight"},
    {"model.layers.0.mlp.gate.router_mlp.fc1.weight", "model.layers.1.zaya_block.router.router_mlp.0.weight"},
    {"model.layers.0.mlp.gate.router_mlp.fc1.bias", "model.layers.1.zaya_block.router.router_mlp.0.bias"},
    {"model.layers.0.mlp.gate.router_mlp.fc2.weight", "model.layers.1.zaya_block.router.router_mlp.2.weight"},
    {"model.layers.0.mlp.gate.router_mlp.fc2.bias", "model.layers.1.zaya_block.router.router_mlp.2.bias"},
    {"model.layers.0.mlp.gate.router_mlp.out_proj.weight", "model.layers.1.zaya_block.router.router_mlp.4.weight"},
    {"model.layers.0.mlp.gate.balancing_biases", "model.layers.1.zaya_block.router.balancing_biases"},
    {"model.layers.1.mlp.gate.router_states_scale", "model.layers.3.zaya_block.router.router_states_scale"},
    {"model.layers.1.mlp.gate.down_proj.weight", "model.layers.3.zaya_block.router.down_proj.weight"},
    {"model.layers.1.mlp.gate.down_proj.bias", "model.layers.3.zaya_block.router.down_proj.bias"},
    {"model.layers.1.mlp.gate.router_mlp.norm.weight", "model.layers.3.zaya_block.router.rmsnorm_eda.weight"},
    {"model.layers.1.mlp.gate.router_mlp.fc1.weight", "model.layers.3.zaya_block.router.router_mlp.0.weight"},
    {"model.layers.1.mlp.gate.router_mlp.fc1.bias", "model.layers.3.zaya_block.router.router_mlp.0.bias"},
    {"model.layers.1.mlp.gate.router_mlp.fc2.weight", "model.layers.3.zaya_block.router.router_mlp.2.weight"},
    {"model.layers.1.mlp.gate.router_mlp.fc2.bias", "model.layers.3.zaya_block.router.router_mlp.2.bias"},
    {"model.layers.1.mlp.gate.router_mlp.out_proj.weight", "model.layers.3.zaya_block.router.router_mlp.4.weight"},
    {"model.layers.1.mlp.gate.balancing_biases", "model.layers.3.zaya_block.router.balancing_biases"},
};
enum { LEGACY_NAMES = sizeof legacy_names / sizeof *legacy_names };

static void write_legacy_config(const Fixture *f, json_t *variant) {
    char *path = path_of(f, "config.json");
    json_t *config = json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:i, s:f, s:f, s:b, s:b, s:b, s:s, s:b}", "model_type", "zaya",
        "hidden_size", 24, "vocab_size", 320, "max_position_embeddings", 256, "moe_router_topk", 1, "norm_epsilon", 1e-5,
        "zaya_mlp_expansion", 12, "rope_theta", 10000.0, "partial_rotary_factor", 0.5, "zaya_use_eda", 1, "zaya_use_mod", 1,
        "scale_residual_merge", 1, "dtype", "bfloat16", "rope_scaling", 0);
    assert_non_null(config);
    json_object_update(config, variant);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    json_decref(variant);
    free(path);
}

/* The same weights under the other names, experts one by one. */
static void make_legacy(const Fixture *f) {
    Edit edit;
    char names[12][96];
    int experts = 0;
    edit_open(f, &edit);
    for (int i = 0; i < LEGACY_NAMES; i++) edit_find(&edit, legacy_names[i].native)->name = legacy_names[i].legacy;
    for (int layer = 0; layer < 2; layer++)
        for (int fc = 1; fc <= 2; fc++) {
            char stack[64];
            snprintf(stack, sizeof stack, "model.layers.%d.mlp.experts.%s", layer, fc == 1 ? "gate_up_proj" : "down_proj");
            StoredTensor *whole = edit_find(&edit, stack), part = *whole;
            *whole = edit.tensors[--edit.count];
            part.rank = 2;
            memmove(part.shape, part.shape + 1, 2 * sizeof *part.shape);
            for (int e = 0; e < 3; e++) {
                snprintf(names[experts], sizeof *names, "model.layers.%d.zaya_block.experts.local_experts.%d.linear_fc%d.weight",
                    2 * layer + 1, e, fc);
                part.name = names[experts++];
                edit.tensors[edit.count++] = part;
                part.data = (const char *)part.data + part.shape[0] * part.shape[1] * sizeof(float);
            }
        }
    edit_write(f, &edit);
}

static void assert_legacy_is_read(json_t *variant) {
    Fixture f;
    HfModel model;
    Error error = {0};
    char text[512] = "";
    start(&f, zaya);
    make_legacy(&f);
    write_legacy_config(&f, variant);
    if (!hf_read(f.out, &model, &error)) fail_msg("%s", error.message);
    Config read = f.config;
    read.model = model.config;
    if (options_difference(&config_table, &f.config, &read, text, sizeof text)) fail_msg("%s", text);
    float *master = load_good(&f);
    assert_same_weights(&f, master);
    char *today = rewrite(&f, "today", true, PRECISION_BF16), *through = rewrite_by_memory(&f, "through", PRECISION_FP32);
    assert_same_file(through, today, "model.safetensors");
    free(today);
    free(through);
    free(master);
    hf_release(&model);
    fixture_stop(&f);
}

/* As ZAYA1-base: lists with an entry per step, and scalars beside them that are wrong. */
static void zaya_folders_with_lists_of_steps_are_read(void **state) {
    (void)state;
    assert_legacy_is_read(json_pack("{s:[s,i,s,i], s:[i,i,i,i], s:[i,i,i,i], s:[i,i,i,i], s:i, s:i, s:i}", "zaya_layers", "a", 3, "a", 3,
        "cca_num_q_heads", 4, 0, 4, 0, "num_query_groups_list", 2, 0, 2, 0, "ffn_hidden_size_list", 0, 40, 0, 40, "kv_channels", 8,
        "num_hidden_layers", 120, "num_attention_heads", 8));
}

/* As ZAYA1-8B's first form. */
static void zaya_folders_with_twice_the_layers_are_read(void **state) {
    (void)state;
    assert_legacy_is_read(json_pack("{s:i, s:i, s:i, s:i, s:i, s:i}", "num_hidden_layers", 4, "num_attention_heads", 4, "num_query_groups",
        2, "ffn_hidden_size", 40, "head_dim", 8, "num_experts", 3));
}

static void the_scale_of_an_mpts_logits_is_in_its_last_norm(void **state) {
    (void)state;
    const struct {
        const char *value;
        float scale;
    } cases[] = {{"null", 1}, {"0.25", 0.25f}, {"-2", -2}, {"\"inv_sqrt_d_model\"", 0.17677669529f /* 1 / sqrt(32) */}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        start(&f, mpt);
        edit_json(&f, "config.json", "logit_scale", cases[i].value);
        float *master = load_good(&f);
        const Parameter *norm = &f.model.graph->parameters[find_parameter(f.model.graph, "transformer.norm_f.weight")];
        float *loaded = parameter_in(norm, master);
        const float *given = parameter_in(norm, f.export.master);
        for (int64_t j = 0; j < norm->count; j++) {
            assert_true(loaded[j] == given[j] * cases[i].scale);
            loaded[j] = given[j];
        }
        assert_same_weights(&f, master);
        char *direct = rewrite(&f, "direct", true, PRECISION_FP32), *through = rewrite_by_memory(&f, "through", PRECISION_FP32);
        assert_same_file(through, direct, "model.safetensors");
        free(direct);
        free(through);
        free(master);
        fixture_stop(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read_back),
        cmocka_unit_test(stacked_experts_are_read_and_written_one_by_one),
        cmocka_unit_test(experts_in_mxfp4_are_dequantized),
        cmocka_unit_test(numbers_round_to_the_nearest_of_mxfp4),
        cmocka_unit_test(a_matrix_in_fp8_needs_its_scales),
        cmocka_unit_test(a_copy_of_a_folder_keeps_every_field),
        cmocka_unit_test(fields_that_nobody_knows_are_warned_of_by_name),
        cmocka_unit_test(fields_that_files_leave_out_have_the_defaults_of_their_class),
        cmocka_unit_test(the_weight_of_mixtrals_router_loss_means_the_same),
        cmocka_unit_test(layers_with_experts_have_even_distances),
        cmocka_unit_test(what_our_models_cannot_compute_is_refused_by_field),
        cmocka_unit_test(a_file_that_is_not_json_is_named_with_its_line),
        cmocka_unit_test(weights_come_back_bit_for_bit),
        cmocka_unit_test(a_folder_that_is_read_and_written_again_is_the_same_byte_for_byte),
        cmocka_unit_test(shards_are_bounded_listed_and_read_back),
        cmocka_unit_test(overwriting_shards_with_one_file_leaves_none_of_them),
        cmocka_unit_test(halves_become_the_floats_of_the_same_value),
        cmocka_unit_test(doubles_hold_what_the_file_says),
        cmocka_unit_test(matrices_can_be_read_in_bf16),
        cmocka_unit_test(a_model_goes_from_folder_to_folder_as_it_does_through_memory),
        cmocka_unit_test(tensors_that_keep_their_types_keep_every_bit),
        cmocka_unit_test(gpt2_folders_may_lack_the_leading_name),
        cmocka_unit_test(a_missing_tensor_is_named_with_its_file),
        cmocka_unit_test(a_superfluous_tensor_is_named_with_its_file),
        cmocka_unit_test(layers_for_multi_token_prediction_are_skipped),
        cmocka_unit_test(unread_tensors_for_multi_token_prediction_are_named),
        cmocka_unit_test(a_layer_for_multi_token_prediction_shares_embedding_and_head),
        cmocka_unit_test(a_layer_for_multi_token_prediction_can_be_left_out),
        cmocka_unit_test(another_shape_is_reported_with_the_one_that_is_asked_for),
        cmocka_unit_test(tensors_of_integers_are_refused),
        cmocka_unit_test(a_file_that_ends_early_is_refused),
        cmocka_unit_test(a_tied_head_may_repeat_the_embedding_but_not_differ_from_it),
        cmocka_unit_test(what_the_index_says_must_be_so),
        cmocka_unit_test(a_folder_without_weights_says_so),
        cmocka_unit_test(zaya_folders_with_lists_of_steps_are_read),
        cmocka_unit_test(zaya_folders_with_twice_the_layers_are_read),
        cmocka_unit_test(the_scale_of_an_mpts_logits_is_in_its_last_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
