/* GGUF files: what llama.cpp's converter and its Python library write is what smelt writes and reads (golden vectors of
 * tests/golden/gguf_vectors.py; tests/golden/check_gguf.py runs llama.cpp itself), models and tokenizers come back as
 * they were, and what llama.cpp cannot do, or a damaged file, is refused by name. */
#include "support/files.h"

#include <math.h>
#include <xxhash.h>

#include "base/bf16.h"
#include "base/scope.h"
#include "base/strings.h"
#include "formats/hf_internal.h"
#include "gguf/gguf.h"
#include "run/generation_settings.h"
#include "run/source.h"
#include "support/hf_fixture.h"
#include "support/mentions.h"
#include "token/tokenizer.h"

static char *root; /* the repository */

/* -- Types --------------------------------------------------------------------------------------------------------- */

static const GgufTensor *tensor_named(const Gguf *file, const char *name, const char *suffix) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    return gguf_tensor(file, full);
}

static int64_t elements(const GgufTensor *tensor) { return tensor->bytes / tensor->type->bytes * tensor->type->elements; }

static void open_types(Gguf *file) {
    SCOPED_FREE char *path = memory_format("%s/tests/golden/gguf/types.gguf", root);
    Error error = {0};
    if (!gguf_open(file, path, &error)) fail_msg("%s", error.message);
}

static void types_decode_to_the_values_of_gguf_py(void **state) {
    (void)state;
    static const char *const names[] = {"F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"};
    SCOPED(gguf_close) Gguf file;
    open_types(&file);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const GgufTensor *tensor = gguf_tensor(&file, names[i]), *values = tensor_named(&file, names[i], ".values");
        assert_string_equal(tensor->type->name, names[i]);
        assert_int_equal(elements(tensor), 2 * 512);
        float decoded[2 * 512];
        tensor->type->decode(tensor->data, decoded, 2 * 512);
        for (int j = 0; j < 2 * 512; j++) {
            float wanted;
            memcpy(&wanted, values->data + j * 4, 4);
            if (decoded[j] != wanted) fail_msg("%s: value %d is %.9g, not %.9g", names[i], j, (double)decoded[j], (double)wanted);
        }
    }
}

static void types_encode_to_the_bytes_of_gguf_py(void **state) {
    (void)state;
    static const char *const names[] = {"F16", "BF16", "Q8_0"};
    SCOPED(gguf_close) Gguf file;
    open_types(&file);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const GgufTensor *tensor = gguf_tensor(&file, names[i]), *source = tensor_named(&file, names[i], ".source");
        float values[2 * 512];
        unsigned char blocks[2 * 512 * 4];
        memcpy(values, source->data, sizeof values);
        tensor->type->encode(values, blocks, 2 * 512);
        assert_memory_equal(blocks, tensor->data, (size_t)tensor->bytes);
    }
}

/* -- Folders as llama.cpp's converter writes them ------------------------------------------------------------------- */

/* Writes the model of a folder in F32, without a tokenizer, whose vocabulary these folders lack. */
static void convert_folder(const char *folder, const char *path) {
    Error error = {0};
    SCOPED(hf_release) HfModel model = {0};
    if (!hf_read(folder, &model, &error)) fail_msg("%s", error.message);
    model.config.softmax_scale = 0; /* llama.cpp's converter leaves an mpt's out, and smelt refuses it */
    SCOPED(model_free) Model built = model_build(&model.config, PRECISION_FP32, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    HfReader *reader = hf_reader_open(folder, &model.config, built.graph, &error);
    assert_non_null(reader);
    HfExport export = {.config = &model.config, .precision = PRECISION_FP32, .reader = reader};
    if (!hf_write_gguf(&export, gguf_type_named("F32"), path, true, &error)) fail_msg("%s: %s", folder, error.message);
    hf_reader_close(reader);
}

static void check_key(const Gguf *file, const char *key, const char *wanted) {
    double number = NAN;
    const GgufValue *value = gguf_find(file, key);
    if (!gguf_real(value, &number) || (float)number != strtof(wanted, NULL)) fail_msg("%s is %g, not %s", key, number, wanted);
}

static void check_tensor(const Gguf *file, const char *name, const char *type, const char *shape, const char *sum) {
    const GgufTensor *tensor = gguf_tensor(file, name);
    char given[64] = "", hash[20];
    if (!tensor) fail_msg("%s is missing", name);
    for (int i = 0; i < tensor->rank; i++) snprintf(given + strlen(given), 32, "%s%lld", i ? "," : "", (long long)tensor->shape[i]);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(tensor->data, (size_t)tensor->bytes));
    if (strcmp(tensor->type->name, type) || strcmp(given, shape) || strcmp(hash, sum))
        fail_msg("%s is %s [%s] with %s, not %s [%s] with %s", name, tensor->type->name, given, hash, type, shape, sum);
}

static void folders_become_what_llama_cpp_makes_of_them(void **state) {
    (void)state;
    SCOPED_FREE char *list = memory_format("%s/tests/golden/gguf/converted.txt", root);
    char line[256], first[16], second[96], third[48], fourth[32], fifth[20];
    size_t folders = 0, tensors = 0;
    Gguf file = {0};
    Error error = {0};
    FILE *stream = fopen(list, "r");
    assert_non_null(stream);
    while (fgets(line, sizeof line, stream)) {
        int words = sscanf(line, "%15s %95s %47s %31s %19s", first, second, third, fourth, fifth);
        if (words == 2) {
            assert_int_equal(tensors, file.tensor_count);
            gguf_close(&file);
            SCOPED_FREE char *folder = memory_format("%s/tests/golden/%s", root, second);
            convert_folder(folder, "folder.gguf");
            if (!gguf_open(&file, "folder.gguf", &error)) fail_msg("%s", error.message);
            folders++, tensors = 0;
        } else if (words == 3 && !strcmp(first, "divisor")) {
            float divisor;
            memcpy(&divisor, gguf_tensor(&file, GGUF_ROPE_FACTORS)->data + 4 * atoi(second), sizeof divisor);
            assert_float_equal(divisor, strtof(third, NULL), 1e-6F * divisor);
            tensors += atoi(second) == 0;
        } else if (words == 3) {
            check_key(&file, second, third);
        } else {
            check_tensor(&file, second, third, fourth, fifth);
            tensors++;
        }
    }
    assert_int_equal(tensors, file.tensor_count);
    assert_int_equal(folders, 6);
    gguf_close(&file);
    fclose(stream);
}

/* -- Models come back ----------------------------------------------------------------------------------------------- */

static FixtureSettings mixtral = {"model.family=llama", "model.heads=2", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true"};
static FixtureSettings qwen2 = {
    "model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64", "model.layers=1", "model.qkv_bias=true"};
static FixtureSettings qwen3 = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=1", "model.head_dim=12", "model.qk_norm=true", "model.tied=false"};
static FixtureSettings qwen3_moe = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=2", "model.head_dim=12", "model.qk_norm=true", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true",
    "model.tied=false"};
static FixtureSettings mpt = {
    "model.family=mpt", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=128", "model.layers=2", "model.clip_qkv=2"};
static FixtureSettings olmo2 = {
    "model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64", "model.layers=2", "model.tied=false"};
static FixtureSettings olmoe = {"model.family=olmo", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=64",
    "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.tied=false"};
static FixtureSettings gpt2 = {
    "model.family=gpt2", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=64", "model.layers=2"};
static FixtureSettings yarn = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=1", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_attention_factor=1.2", "model.rope_beta_fast=16",
    "model.rope_original_context=32"};
static FixtureSettings linear = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=1", "model.qkv_bias=true", "model.rope_scaling=linear", "model.rope_factor=2.5"};
static FixtureSettings published = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.head_dim=64", "model.width=32",
    "model.ffn=64", "model.layers=1", "model.rope_theta=500000", "model.rope_factor=32", "model.rope_original_context=8192",
    "model.context=16384"};
static FixtureSettings smollm3 = {"model.family=smollm3", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=5", "model.nope_period=4", "model.tied=true"};
static FixtureSettings granite = {"model.family=granite", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=2", "model.embedding_scale=12", "model.residual_scale=0.22", "model.softmax_scale=0.1", "model.logit_divisor=8"};
static FixtureSettings granitemoe = {"model.family=granite", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true", "model.auxiliary_scope=model",
    "model.embedding_scale=12", "model.residual_scale=0.22", "model.softmax_scale=0.1", "model.logit_divisor=8"};
static FixtureSettings gemma2 = {"model.family=gemma", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=3", "model.head_dim=12", "model.tied=true", "model.window=9", "model.window_period=2", "model.score_cap=5",
    "model.logit_cap=7"};
static FixtureSettings gemma3 = {"model.family=gemma", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=7", "model.tied=false", "model.qk_norm=true", "model.window=9", "model.window_period=6", "model.window_first=5",
    "model.window_skips=true", "model.window_rope_theta=3000", "model.rope_theta=1e6", "model.rope_scaling=linear", "model.rope_factor=8"};
static FixtureSettings phi3 = {"model.family=phi3", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64", "model.layers=2",
    "model.rope_fraction=0.75", "model.tied=false"};
static FixtureSettings glm = {"model.family=glm", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40", "model.layers=3",
    "model.experts=6", "model.experts_per_token=2", "model.experts_first=1", "model.dense_ffn=64", "model.shared_experts=2",
    "model.router_scores=sigmoid", "model.renormalise=true", "model.gate_scale=1.5", "model.qkv_bias=true", "model.rope_fraction=0.5"};
static FixtureSettings minimax = {"model.family=minimax", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=2", "model.experts=5", "model.experts_per_token=2", "model.router_scores=sigmoid", "model.renormalise=true",
    "model.rope_fraction=0.5", "model.tied=false"};
static FixtureSettings gpt_oss = {"model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=3", "model.experts=5", "model.experts_per_token=2", "model.renormalise=true", "model.qkv_bias=true", "model.tied=false",
    "model.window=9", "model.window_period=2", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32",
    "model.rope_truncate=false"};
#define DEEPSEEK                                                                                                                           \
    "model.family=deepseek", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.head_dim=24", "model.rope_dim=8",               \
        "model.value_dim=12", "model.kv_lora_rank=16", "model.ffn=40", "model.experts=8", "model.experts_per_token=2",                     \
        "model.shared_experts=2", "model.norm_epsilon=1e-6"
static FixtureSettings deepseek_v2 = {DEEPSEEK, "model.layers=26", "model.experts_first=1", "model.dense_ffn=64", "model.rope_scaling=yarn",
    "model.rope_factor=40", "model.rope_original_context=32", "model.rope_mscale=0.707"};
static FixtureSettings deepseek_v3 = {DEEPSEEK, "model.layers=2", "model.q_lora_rank=20", "model.router_scores=sigmoid",
    "model.renormalise=true", "model.gate_scale=2.5", "model.expert_groups=4", "model.groups_chosen=2"};
#define DELTA                                                                                                                              \
    "model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.layers=4",                          \
        "model.attention_period=3", "model.rope_fraction=0.5", "model.delta_key_heads=2", "model.delta_key_dim=8", "model.delta_value_dim=8"
#define DELTA_EXPERTS "model.experts=5", "model.experts_per_token=2", "model.shared_experts=2", "model.renormalise=true"
static FixtureSettings qwen3_next = {"model.family=qwen3_next", DELTA, DELTA_EXPERTS, "model.delta_heads=6"};
static FixtureSettings qwen3_5 = {"model.family=qwen3_5", DELTA, "model.delta_heads=6", "model.tied=true"};
static FixtureSettings qwen3_5_moe = {"model.family=qwen3_5", DELTA, DELTA_EXPERTS, "model.delta_heads=2"};
static FixtureSettings ministral3 = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
    "model.layers=2", "model.rope_scaling=yarn", "model.rope_factor=4", "model.rope_original_context=32", "model.rope_query_scale=0.1"};
static const char *const *const models[] = {llama, published, mixtral, qwen2, qwen3, qwen3_moe, mpt, olmo2, olmoe, smollm3, granite,
    granitemoe, gpt2, yarn, linear, gemma2, gemma3, phi3, glm, minimax, gpt_oss, deepseek_v2, deepseek_v3, qwen3_next, qwen3_5, qwen3_5_moe,
    ministral3};
enum { MODELS = sizeof models / sizeof *models };

static void write_gguf(const Fixture *f, const char *type, const char *path) {
    Error error = {0};
    if (!hf_write_gguf(&f->export, gguf_type_named(type), path, true, &error)) fail_msg("%s", error.message);
}

/* As config.json describes a model. */
static json_t *description(const ModelConfig *config) { return hf_config(&(HfExport){.config = config, .precision = PRECISION_FP32}); }

static float *load_all(const Fixture *f, const char *path) {
    Error error = {0};
    float *master = memory_allocate((size_t)f->model.graph->parameter_bytes);
    if (!hf_load_weights(path, &f->config.model, f->model.graph, master, &error)) fail_msg("%s", error.message);
    return master;
}

/* Files hold the exponentials of these numbers, rounded to 2^-24 of their size. */
static void assert_logarithms_close(const float *back, const float *given, int64_t count) {
    for (int64_t i = 0; i < count; i++) assert_float_equal(back[i], given[i], 3e-7);
}

static void models_come_back_bit_for_bit_in_f32(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        Error error = {0};
        Fixture f;
        fixture_start(&f, models[i], PRECISION_FP32);
        write_gguf(&f, "F32", "model.gguf");
        SCOPED(hf_release) HfModel read = {0};
        if (!hf_read("model.gguf", &read, &error)) fail_msg("%s", error.message);
        json_auto_t *given = description(&f.config.model), *back = description(&read.config);
        SCOPED_FREE char *given_text = json_dumps(given, 0), *back_text = json_dumps(back, 0);
        assert_string_equal(back_text, given_text);
        assert_true(read.bytes);
        assert_null(read.warnings);
        SCOPED_FREE float *master = load_all(&f, "model.gguf");
        for (int p = 0; p < f.model.graph->parameter_count; p++) {
            const Parameter *parameter = &f.model.graph->parameters[p];
            if (ends_with(parameter->name, ".A_log"))
                assert_logarithms_close(
                    parameter_in(parameter, (char *)master), parameter_in(parameter, f.export.master), parameter->count);
            else if (parameter->kind != PARAMETER_BALANCE_BIAS || f.config.model.router_scores == SCORES_SIGMOID)
                assert_memory_equal(
                    parameter_in(parameter, (char *)master), parameter_in(parameter, f.export.master), parameter->count * sizeof(float));
        }
        fixture_stop(&f);
    }
}

/* The largest difference of a matrix's elements, in parts of its largest one. */
static double matrix_error(const Fixture *f, const float *master) {
    double worst = 0;
    for (int p = 0; p < f->model.graph->parameter_count; p++) {
        const Parameter *parameter = &f->model.graph->parameters[p];
        const float *given = parameter_in(parameter, f->export.master), *back = parameter_in(parameter, (char *)master);
        double most = 0, difference = 0;
        if (parameter->kind == PARAMETER_BALANCE_BIAS) continue;
        for (int64_t i = 0; i < parameter->count; i++) {
            most = fmax(most, fabs(given[i]));
            difference = fmax(difference, fabs(given[i] - back[i]));
        }
        worst = fmax(worst, difference / most);
    }
    return worst;
}

static void models_come_back_within_a_types_rounding(void **state) {
    (void)state;
    static const struct {
        const char *type;
        double least, most;
    } types[] = {{"F16", 1e-5, 0x1p-11}, {"BF16", 1e-4, 0x1p-8}, {"Q8_0", 1e-4, 0.5 / 127 + 0x1p-11}};
    for (int i = 0; i < MODELS; i++)
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            Fixture f;
            fixture_start(&f, models[i], PRECISION_FP32);
            write_gguf(&f, types[t].type, "model.gguf");
            SCOPED_FREE float *master = load_all(&f, "model.gguf");
            double error = matrix_error(&f, master);
            if (!(error >= types[t].least && error <= types[t].most)) fail_msg("model %d, %s: %g", i, types[t].type, error);
            fixture_stop(&f);
        }
}

static void a_bf16_program_reads_blocks_rounded_once(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    fixture_start(&f, llama, PRECISION_FP32);
    write_gguf(&f, "Q8_0", "model.gguf");
    SCOPED_FREE float *master = load_all(&f, "model.gguf");
    HfReader *reader = hf_reader_open("model.gguf", &f.config.model, f.model.graph, &error);
    int query = graph_find_parameter(f.model.graph, "model.layers.1.self_attn.q_proj.weight");
    const Parameter *parameter = &f.model.graph->parameters[query];
    SCOPED_FREE uint16_t *half = memory_allocate((size_t)parameter->count * sizeof *half);
    hf_reader_load_bf16(reader, query, half);
    const float *whole = parameter_in(parameter, (char *)master);
    for (int64_t i = 0; i < parameter->count; i++) assert_int_equal(half[i], bf16_from_float(whole[i]));
    hf_reader_close(reader);
    fixture_stop(&f);
}

static void a_file_is_a_source_like_a_folder(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    Config config;
    OptionStrings strings = {0};
    TokenIds ends = {0};
    fixture_start(&f, llama, PRECISION_FP32);
    write_gguf(&f, "BF16", "model.gguf");
    assert_true(source_is_model_folder("model.gguf"));
    assert_false(source_is_run("model.gguf"));
    assert_true(source_read_config("model.gguf", &config, &strings, &error));
    assert_int_equal(config.precision, PRECISION_BF16);
    SCOPED_FREE char *tokenizer = source_tokenizer("model.gguf", &config);
    assert_string_equal(tokenizer, "");
    assert_true(generation_end_tokens("model.gguf", &config, NULL, &ends, &error));
    assert_int_equal(ends.count, 1);
    assert_int_equal(ends.items[0], 256);
    token_ids_free(&ends);
    options_free_strings(&strings);
    fixture_stop(&f);
}

static void a_file_without_tokens_has_no_tokenizer_and_becomes_a_folder_without_one(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    Config config;
    OptionStrings strings = {0};
    fixture_start(&f, llama, PRECISION_FP32);
    f.export.bytes = false;
    write_gguf(&f, "F32", "model.gguf");
    assert_true(source_read_config("model.gguf", &config, &strings, &error));
    assert_null(source_tokenizer("model.gguf", &config));
    f.export.source = "model.gguf";
    if (!hf_write(&f.export, "folder", false, &error)) fail_msg("%s", error.message);
    assert_int_not_equal(access("folder/tokenizer.json", F_OK), 0);
    write_gguf(&f, "F32", "again.gguf");
    assert_false(gguf_has_tokenizer("again.gguf"));
    options_free_strings(&strings);
    fixture_stop(&f);
}

/* -- Tokenizers ------------------------------------------------------------------------------------------------------ */

static json_t *read_golden(const char *kind) {
    SCOPED_FREE char *path = memory_format("%s/tests/golden/tokenizers/%s.json", root, kind);
    json_t *content = json_load_file(path, 0, NULL);
    assert_non_null(content);
    return content;
}

/* Writes a file of a tokenizer alone. */
static bool write_tokenizer(const json_t *tokenizer, const json_t *config, int64_t rows, const char *path, Error *error) {
    SCOPED(gguf_writer_close) GgufWriter writer = {0};
    return gguf_put_tokenizer(&writer, tokenizer, config, NULL, rows, error) && gguf_begin(&writer, path, error) &&
           gguf_commit(&writer, error);
}

static json_t *end_of(const char *text) { return json_pack("{s:s, s:s}", "eos_token", text, "chat_template", "{{ messages }} \xc3\xa9"); }

static void assert_same_tokens(const Tokenizer *a, const Tokenizer *b, const char *kind) {
    static const char *const texts[] = {"", "The licence, in 1991, isn't 12345 words  long.\n\n\tIt's", " a b",
        "caf\xc3\xa9 \xe4\xba\xac\xe9\x83\xbd \xf0\x9f\x98\x80!", "<|endoftext|>the</s> of<s>", "\x01\xff",
        "a  \xe2\x96\x81"
        "b"};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (unsigned flags = 0; flags <= TOKENIZER_ADD_SPECIAL; flags++) {
            TokenizerEncoder *encoders[] = {tokenizer_encoder_open(a), tokenizer_encoder_open(b)};
            TokenIds ids[2] = {{0}, {0}};
            Error error = {0};
            for (int i = 0; i < 2; i++) assert_true(tokenizer_encode(encoders[i], texts[t], strlen(texts[t]), flags, &ids[i], &error));
            if (ids[0].count != ids[1].count || (ids[0].count && memcmp(ids[0].items, ids[1].items, ids[0].count * sizeof *ids[0].items)))
                fail_msg("%s: other tokens of '%s'", kind, texts[t]);
            TokenizerDecoder decoders[] = {tokenizer_decoder(a, false), tokenizer_decoder(b, false)};
            for (size_t i = 0; i < ids[0].count; i++) {
                size_t sizes[2];
                const char *pieces[] = {
                    tokenizer_decode(&decoders[0], ids[0].items[i], &sizes[0]), tokenizer_decode(&decoders[1], ids[0].items[i], &sizes[1])};
                if (sizes[0] != sizes[1] || memcmp(pieces[0], pieces[1], sizes[0]))
                    fail_msg("%s: token %d is another text", kind, ids[0].items[i]);
            }
            for (int i = 0; i < 2; i++) {
                token_ids_free(&ids[i]);
                tokenizer_encoder_free(encoders[i]);
            }
        }
}

static void tokenizers_come_back_with_the_same_tokens(void **state) {
    (void)state;
    static const struct {
        const char *kind, *end;
    } kinds[] = {{"gpt2", "<|endoftext|>"}, {"qwen", "<|endoftext|>"}, {"llama3", "<|endoftext|>"}, {"../gguf/sentencepiece", "</s>"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        Error error = {0};
        SCOPED_FREE char *path = memory_format("%s/tests/golden/tokenizers/%s.json", root, kinds[i].kind);
        json_auto_t *content = read_golden(kinds[i].kind), *config = end_of(kinds[i].end);
        Tokenizer *given = tokenizer_open(path, &error);
        int32_t rows = tokenizer_vocabulary(given) + 7;
        if (!write_tokenizer(content, config, rows, "tokens.gguf", &error)) fail_msg("%s: %s", kinds[i].kind, error.message);
        Tokenizer *back = tokenizer_open("tokens.gguf", &error);
        if (!back) fail_msg("%s: %s", kinds[i].kind, error.message);
        assert_int_equal(tokenizer_vocabulary(back), rows - 7);
        assert_int_equal(tokenizer_end_of_text(back), tokenizer_id(given, kinds[i].end));
        assert_same_tokens(given, back, kinds[i].kind);
        tokenizer_free(back);
        tokenizer_free(given);
    }
}

static void a_copy_of_a_files_tokenizer_is_two_files_with_its_template(void **state) {
    (void)state;
    Error error = {0};
    json_auto_t *content = read_golden("gpt2"), *config = end_of("<|endoftext|>");
    assert_true(write_tokenizer(content, config, 800, "tokens.gguf", &error));
    assert_true(tokenizer_copy("tokens.gguf", "copy", &error));
    bool differs;
    assert_true(tokenizer_differs("tokens.gguf", "copy", &differs, &error) && !differs);
    json_auto_t *copied = json_load_file("copy/tokenizer_config.json", 0, NULL);
    assert_string_equal(json_string_value(json_object_get(copied, "chat_template")), "{{ messages }} \xc3\xa9");
    assert_string_equal(json_string_value(json_object_get(copied, "eos_token")), "<|endoftext|>");
}

static void assert_message(const Error *error, ErrorCode code, const char *part) {
    assert_int_equal(error->code, code);
    if (!mentions(error->message, part)) fail_msg("\"%s\" does not contain \"%s\"", error->message, part);
}

static void tokenizers_that_llama_cpp_lacks_are_refused(void **state) {
    (void)state;
    Error error = {0};
    json_auto_t *metaspace = read_golden("metaspace"), *added = read_golden("added"), *plain = read_golden("gpt2"),
                *end = end_of("<|endoftext|>"), *scores = read_golden("llama2"), *last = end_of("</s>");
    assert_false(write_tokenizer(metaspace, last, 2000, "no.gguf", &error));
    assert_message(&error, ERROR_USAGE, "tokenizer");
    error = (Error){0};
    assert_false(write_tokenizer(added, end, 2000, "no.gguf", &error));
    assert_message(&error, ERROR_USAGE, "tokenizer");
    error = (Error){0};
    assert_false(write_tokenizer(plain, NULL, 2000, "no.gguf", &error));
    assert_message(&error, ERROR_USAGE, "token 11");
    error = (Error){0};
    assert_false(write_tokenizer(plain, end, 500, "no.gguf", &error));
    assert_message(&error, ERROR_USAGE, "500");
    error = (Error){0};
    assert_false(write_tokenizer(scores, last, 2000, "no.gguf", &error));
    assert_message(&error, ERROR_USAGE, "scores");
    assert_int_not_equal(access("no.gguf", F_OK), 0);
}

/* -- Refusals -------------------------------------------------------------------------------------------------------- */

static void assert_not_written(const char *const *settings, const char *part) {
    Fixture f;
    Error error = {0};
    fixture_start(&f, settings, PRECISION_FP32);
    assert_false(hf_write_gguf(&f.export, gguf_type_named("F32"), "no.gguf", true, &error));
    assert_message(&error, ERROR_USAGE, part);
    assert_int_not_equal(access("no.gguf", F_OK), 0);
    fixture_stop(&f);
}

static void models_that_llama_cpp_lacks_are_refused(void **state) {
    (void)state;
    static FixtureSettings zaya = {"model.family=zaya", "model.experts=3", "model.heads=4", "model.kv_heads=2", "model.head_dim=8",
        "model.width=24", "model.ffn=20", "model.router_width=12", "model.rope_fraction=0.5", "model.layers=2"};
    static FixtureSettings dynamic = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
        "model.layers=1", "model.rope_scaling=dynamic", "model.rope_factor=2", "model.rope_original_context=128", "model.context=256"};
    static FixtureSettings longrope = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
        "model.layers=1", "model.rope_scaling=longrope", "model.rope_factor=2", "model.rope_short_factors=1,2,3,4",
        "model.rope_long_factors=1,2,3,4"};
    static FixtureSettings scaled = {"model.family=mpt", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=128",
        "model.layers=1", "model.softmax_scale=0.3"};
    static FixtureSettings mixed = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
        "model.layers=2", "model.qk_norm=true", "model.experts=3", "model.renormalise=true", "model.experts_first=1"};
    static FixtureSettings plain_gates = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
        "model.layers=2", "model.qk_norm=true", "model.experts=3"};
    static FixtureSettings clipped = {"model.family=olmo", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=64",
        "model.layers=1", "model.experts=3", "model.tied=false", "model.clip_qkv=2"};
    static FixtureSettings tied = {"model.family=olmo", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=64",
        "model.layers=1", "model.experts=3", "model.tied=true"};
    static FixtureSettings grouped = {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
        "model.layers=1", "model.experts=3", "model.tied=false"};
    static FixtureSettings rotated = {
        "model.family=smollm3", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64", "model.layers=5"};
    assert_not_written(rotated, "model.nope_period=0 every 4th");
    assert_not_written(grouped, "model.kv_heads=2");
    assert_not_written(clipped, "model.clip_qkv=2");
    assert_not_written(tied, "model.tied=true");
    assert_not_written(mixed, "model.experts_first=1 experts in all layers");
    assert_not_written(plain_gates, "model.renormalise=false");
    assert_not_written(zaya, "no architecture for ZayaForCausalLM");
    assert_not_written(dynamic, "model.rope_scaling=dynamic");
    static FixtureSettings olmo3 = {"model.family=olmo", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64",
        "model.layers=2", "model.window=9", "model.window_period=2"};
    assert_not_written(olmo3, "no architecture for Olmo3ForCausalLM");
    assert_not_written(longrope, "model.rope_scaling=longrope the length of each text");
    assert_not_written(scaled, "model.softmax_scale=0.3");
}

/* A setting changed to one that the architecture cannot express. */
static void assert_change_refused(const char *const *settings, const char *change, const char *part) {
    const char *changed[48] = {NULL};
    size_t count = 0, name = (size_t)(strchr(change, '=') - change) + 1;
    for (size_t i = 0; settings[i]; i++)
        if (strncmp(settings[i], change, name) != 0) changed[count++] = settings[i];
    changed[count] = change;
    assert_not_written(changed, part);
}

static void settings_that_an_architecture_of_llama_cpp_lacks_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *const *settings;
        const char *change, *part;
    } changes[] = {
        {gemma2, "model.window_period=3", "model.window_period=3 every 2nd"},
        {gemma2, "model.window=0", "model.window=0 has a window"},
        {gemma2, "model.tied=false", "model.tied=false gemma2"},
        {gemma2, "model.score_cap=0", "model.score_cap=0"},
        {gemma2, "model.softmax_scale=0.5", "model.softmax_scale=0.5 sqrt(12)"},
        {gemma3, "model.window_skips=false", "every 6th"},
        {phi3, "model.rope_factor=2", "model.rope_scaling"},
        {glm, "model.expert_groups=3", "model.expert_groups=3"},
        {minimax, "model.tied=true", "model.tied=true"},
        {gpt_oss, "model.swiglu_limit=6", "model.swiglu_limit=6"},
        {gpt_oss, "model.qkv_bias=false", "model.qkv_bias=false"},
        {gpt_oss, "model.rope_truncate=true", "model.rope_truncate=true"},
        {gpt_oss, "model.window_period=1", "model.window_period=1"},
        {deepseek_v2, "model.norm_epsilon=1e-5", "model.norm_epsilon=1e-05"},
        {deepseek_v2, "model.layers=25", "model.layers=25"},
        {deepseek_v2, "model.rope_attention_factor=1.5", "model.rope_attention_factor=1.5"},
        {deepseek_v2, "model.expert_groups=4", "model.expert_groups=4"},
        {deepseek_v3, "model.rope_interleave=false", "model.rope_interleave=false"},
        {qwen3_next, "model.experts_first=1", "model.experts_first=1"},
        {qwen3_next, "model.renormalise=false", "model.renormalise=false"},
        {qwen3_next, "model.delta_value_dim=4", "model.delta_value_dim=4"},
        {qwen3_5, "model.attention_period=5", "model.attention_period=5"},
        {ministral3, "model.rope_scaling=llama3", "model.rope_query_scale=0.1 without"},
        {ministral3, "model.rope_attention_factor=1.5", "model.rope_attention_factor=1.5"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        assert_change_refused(changes[i].settings, changes[i].change, changes[i].part);
}

static void a_window_becomes_the_context(void **state) {
    (void)state;
    static FixtureSettings windowed = {
        "model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=64", "model.layers=1", "model.window=9"};
    Fixture f;
    Error error = {0};
    SCOPED(hf_release) HfModel read = {0};
    fixture_start(&f, windowed, PRECISION_FP32);
    write_gguf(&f, "F32", "model.gguf");
    assert_true(hf_read("model.gguf", &read, &error));
    assert_int_equal(read.config.context, 9);
    assert_int_equal(read.config.window, 0);
    fixture_stop(&f);
}

static void values_that_a_type_cannot_hold_are_refused(void **state) {
    (void)state;
    static const struct {
        float value;
        const char *type, *part;
    } cases[] = {{7e4F, "F16", "70000 F16"}, {NAN, "Q8_0", "NaN or infinity"}, {INFINITY, "F32", "NaN or infinity"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        Error error = {0};
        fixture_start(&f, llama, PRECISION_FP32);
        int down = graph_find_parameter(f.model.graph, "model.layers.1.mlp.up_proj.weight");
        ((float *)parameter_in(&f.model.graph->parameters[down], (char *)f.export.master))[3] = cases[i].value;
        assert_false(hf_write_gguf(&f.export, gguf_type_named(cases[i].type), "no.gguf", true, &error));
        assert_message(&error, ERROR_NUMERICS, cases[i].part);
        assert_message(&error, ERROR_NUMERICS, "blk.1.ffn_up.weight");
        assert_int_not_equal(access("no.gguf", F_OK), 0);
        fixture_stop(&f);
    }
}

/* Every prefix of a file, and every byte of its keys and descriptions changed, is refused in one line or read. */
static void damaged_files_are_refused(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, qwen2, PRECISION_FP32);
    write_gguf(&f, "Q8_0", "model.gguf");
    size_t size, refused = 0;
    SCOPED_FREE unsigned char *bytes = read_bytes("model.gguf", &size);
    SCOPED(gguf_close) Gguf whole;
    Error error = {0};
    assert_true(gguf_open(&whole, "model.gguf", &error));
    size_t head = (size_t)(gguf_tensor(&whole, "token_embd.weight")->data - whole.map.bytes);
    for (size_t i = 0; i < size; i += i < 600 ? 1 : 97) {
        Gguf file;
        error = (Error){0};
        write_bytes("cut.gguf", bytes, i);
        assert_false(gguf_open(&file, "cut.gguf", &error));
        assert_null(strchr(error.message, '\n'));
    }
    for (size_t i = 0; i < head; i += i < 1200 ? 1 : 41) {
        SCOPED(hf_release) HfModel model = {0};
        error = (Error){0};
        bytes[i] ^= 0x81;
        write_bytes("changed.gguf", bytes, size);
        bytes[i] ^= 0x81;
        HfReader *reader =
            hf_read("changed.gguf", &model, &error) ? hf_reader_open("changed.gguf", &f.config.model, f.model.graph, &error) : NULL;
        refused += !reader;
        if (!reader) assert_null(strchr(error.message, '\n'));
        hf_reader_close(reader);
    }
    assert_true(refused > 200);
    fixture_stop(&f);
}

/* A file of one key or so, refused with a message that names what is wrong. */
static void assert_refused(GgufWriter *writer, const char *part) {
    Error error = {0};
    SCOPED(hf_release) HfModel model = {0};
    assert_true(gguf_begin(writer, "key.gguf", &error) && gguf_commit(writer, &error));
    assert_false(hf_read("key.gguf", &model, &error));
    assert_message(&error, ERROR_CHECKPOINT, part);
    gguf_writer_close(writer);
}

static void files_of_other_models_are_refused_by_key(void **state) {
    (void)state;
    GgufWriter writer = {0};
    gguf_put_text(&writer, "general.architecture", "mamba", 5);
    assert_refused(&writer, "general.architecture is mamba");
    writer = (GgufWriter){0};
    gguf_put_text(&writer, "general.architecture", "llama", 5);
    gguf_put_integer(&writer, "llama.attention.sliding_window", GGUF_U32, 7);
    assert_refused(&writer, "llama.attention.sliding_window");
    writer = (GgufWriter){0};
    gguf_put_text(&writer, "general.architecture", "llama", 5);
    gguf_put_text(&writer, "general.architecture", "llama", 5);
    assert_refused(&writer, "general.architecture");
    writer = (GgufWriter){0};
    gguf_put_integer(&writer, "split.count", GGUF_U16, 3);
    assert_refused(&writer, "3 files model");
}

int main(void) {
    char here[4096];
    root = getcwd(here, sizeof here);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_decode_to_the_values_of_gguf_py),
        cmocka_unit_test(types_encode_to_the_bytes_of_gguf_py),
        cmocka_unit_test_setup_teardown(folders_become_what_llama_cpp_makes_of_them, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(models_come_back_bit_for_bit_in_f32, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(models_come_back_within_a_types_rounding, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_bf16_program_reads_blocks_rounded_once, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_file_is_a_source_like_a_folder, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(
            a_file_without_tokens_has_no_tokenizer_and_becomes_a_folder_without_one, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(tokenizers_come_back_with_the_same_tokens, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_copy_of_a_files_tokenizer_is_two_files_with_its_template, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(tokenizers_that_llama_cpp_lacks_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(models_that_llama_cpp_lacks_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(settings_that_an_architecture_of_llama_cpp_lacks_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_window_becomes_the_context, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(values_that_a_type_cannot_hold_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(damaged_files_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(files_of_other_models_are_refused_by_key, enter_folder, leave_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
