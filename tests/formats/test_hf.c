/* Exported folders: what config.json says, the tensors under their Hugging Face names, the tokenizer, and folders
 * that are left alone. tests/golden/check_export.py loads such folders in transformers. */
#include <math.h>

#include "base/bf16.h"
#include "base/float8.h"
#include "base/file.h"
#include "data/byte_tokenizer.h"
#include "support/hf_fixture.h"
#include "support/mentions.h"

static FixtureSettings zaya = {"model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=8",
    "model.width=24", "model.ffn=20", "model.router_width=12", "model.rope_fraction=0.5", "model.layers=3"};
static FixtureSettings mixtral = {"model.family=llama", "model.heads=2", "model.kv_heads=2", "model.width=16", "model.ffn=12",
    "model.layers=2", "model.experts=3", "model.experts_per_token=2", "model.renormalise=true"};

static FixtureSettings fp8 = {
    "model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=48", "model.layers=2", "model.tied=false"};

static void write_good(Fixture *f, bool overwrite) {
    Error error = {0};
    if (!hf_write(&f->export, f->out, overwrite, &error)) fail_msg("%s", error.message);
}

static void assert_refused(Fixture *f, bool overwrite, const char *fragment) {
    Error error = {0};
    assert_false(hf_write(&f->export, f->out, overwrite, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    if (!mentions(error.message, fragment)) fail_msg("\"%s\" does not contain \"%s\"", error.message, fragment);
}

static bool exists(const Fixture *f, const char *name) {
    char *path = memory_format("%s/%s", f->out, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static json_t *read_json(const Fixture *f, const char *name) {
    char *path = memory_format("%s/%s", f->out, name);
    json_t *content = json_load_file(path, 0, NULL);
    free(path);
    assert_non_null(content);
    return content;
}

static int64_t integer(const json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key) {
    assert_true(json_is_string(json_object_get(object, key)));
    return json_string_value(json_object_get(object, key));
}

static double real(const json_t *object, const char *key) {
    assert_true(json_is_real(json_object_get(object, key)));
    return json_real_value(json_object_get(object, key));
}

/* -- config.json --------------------------------------------------------------------------------------------------- */

static void the_configuration_of_zaya_has_its_keys(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, zaya, PRECISION_BF16);
    write_good(&f, false);
    json_t *config = read_json(&f, "config.json");
    assert_string_equal(json_string_value(json_array_get(json_object_get(config, "architectures"), 0)), "ZayaForCausalLM");
    assert_string_equal(string(config, "model_type"), "zaya");
    assert_string_equal(string(config, "dtype"), "bfloat16");
    assert_int_equal(integer(config, "hidden_size"), 24);
    assert_int_equal(integer(config, "head_dim"), 8);
    assert_int_equal(integer(config, "num_experts"), 4);
    assert_int_equal(integer(config, "moe_intermediate_size"), 20);
    assert_int_equal(integer(config, "router_hidden_size"), 12);
    assert_int_equal(integer(config, "max_position_embeddings"), 256);
    assert_int_equal(integer(config, "eos_token_id"), BYTE_SEPARATOR);
    assert_true(json_is_true(json_object_get(config, "tie_word_embeddings")));
    assert_true(json_is_null(json_object_get(config, "pad_token_id")));
    json_t *rope = json_object_get(json_object_get(config, "rope_parameters"), "hybrid");
    assert_string_equal(string(rope, "rope_type"), "default");
    assert_true(real(rope, "partial_rotary_factor") == 0.5 && real(rope, "rope_theta") == 10000);
    assert_int_equal(json_array_size(json_object_get(config, "layer_types")), 3);
    json_decref(config);
    fixture_stop(&f);
}

static void the_configuration_of_llama_has_the_scaling_of_positions(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, llama, PRECISION_FP32);
    json_t *config = hf_config(&f.export);
    assert_string_equal(string(config, "model_type"), "llama");
    assert_string_equal(string(config, "dtype"), "float32");
    assert_int_equal(integer(config, "num_key_value_heads"), 2);
    assert_int_equal(integer(config, "intermediate_size"), 40);
    assert_true(json_is_false(json_object_get(config, "tie_word_embeddings")));
    json_t *scaling = json_object_get(config, "rope_scaling");
    assert_string_equal(string(scaling, "rope_type"), "llama3");
    assert_true(real(scaling, "factor") == 8 && real(scaling, "low_freq_factor") == 1 && real(scaling, "high_freq_factor") == 4);
    assert_int_equal(integer(scaling, "original_max_position_embeddings"), 16);
    json_decref(config);
    fixture_stop(&f);
}

static void a_llama_with_a_window_is_a_mistral(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, llama, PRECISION_FP32);
    f.config.model.window = 9;
    json_t *config = hf_config(&f.export);
    assert_string_equal(string(config, "model_type"), "mistral");
    assert_int_equal(integer(config, "sliding_window"), 9);
    json_decref(config);
    fixture_stop(&f);
}

static void a_llama_with_experts_is_a_mixtral(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, mixtral, PRECISION_FP32);
    json_t *config = hf_config(&f.export);
    assert_string_equal(string(config, "model_type"), "mixtral");
    assert_int_equal(integer(config, "num_local_experts"), 3);
    assert_int_equal(integer(config, "num_experts_per_tok"), 2);
    assert_true(json_is_null(json_object_get(config, "sliding_window")));
    json_decref(config);
    fixture_stop(&f);
}

static void what_a_class_cannot_express_is_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *const *settings;
        const char *change, *fragment;
    } cases[] = {
        {zaya, "model.experts_per_token=2", "model.experts_per_token=2"},
        {zaya, "model.renormalise=true", "model.renormalise=true"},
        {mixtral, "model.renormalise=false", "model.renormalise=false"},
        {mixtral, "model.experts_first=1", "model.experts_first=1 MixtralForCausalLM"},
        {llama, "model.rope_fraction=0.5", "model.rope_fraction=0.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        Error error = {0};
        fixture_start(&f, cases[i].settings, PRECISION_FP32);
        assert_true(options_set(&config_table, &f.config, &f.strings, cases[i].change, &error));
        assert_refused(&f, false, cases[i].fragment);
        assert_false(exists(&f, ""));
        fixture_stop(&f);
    }
}

static void biases_that_mixtral_lacks_are_refused(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, mixtral, PRECISION_FP32);
    const Graph *graph = f.model.graph;
    for (int i = 0; i < graph->parameter_count; i++)
        if (graph->parameters[i].kind == PARAMETER_BALANCE_BIAS) ((float *)parameter_in(&graph->parameters[i], f.export.master))[1] = 0.5f;
    assert_refused(&f, false, "model.layers.0.mlp.gate.balancing_biases");
    fixture_stop(&f);
}

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

static Safetensors open_tensors(const Fixture *f) {
    Safetensors file;
    Error error = {0};
    char *path = memory_format("%s/model.safetensors", f->out);
    if (!safetensors_open(&file, path, &error)) fail_msg("%s", error.message);
    free(path);
    return file;
}

static const StoredTensor *find(const Safetensors *file, const char *name, StoredType type, int rank, const int64_t *shape) {
    const StoredTensor *tensor = safetensors_find(file, name);
    if (!tensor) fail_msg("%s is missing", name);
    assert_int_equal(tensor->type, type);
    assert_int_equal(tensor->rank, rank);
    assert_memory_equal(tensor->shape, shape, rank * sizeof *shape);
    return tensor;
}

static const float *parameter(const Fixture *f, const char *name) {
    const Graph *graph = f->model.graph;
    for (int i = 0; i < graph->parameter_count; i++)
        if (!strcmp(graph->parameters[i].name, name)) return parameter_in(&graph->parameters[i], f->export.master);
    fail_msg("%s is no parameter", name);
    return NULL;
}

static void every_parameter_of_zaya_is_stored_under_its_name(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, zaya, PRECISION_FP32);
    write_good(&f, false);
    Safetensors file = open_tensors(&f);
    const Graph *graph = f.model.graph;
    assert_int_equal(file.count, graph->parameter_count);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        const StoredTensor *tensor = find(&file, p->name, STORED_F32, p->rank, p->shape);
        assert_memory_equal(tensor->data, parameter_in(p, f.export.master), p->count * sizeof(float));
    }
    assert_string_equal(string(file.metadata, "format"), "pt");
    safetensors_close(&file);
    fixture_stop(&f);
}

static void bf16_is_rounded_to_nearest_and_balancing_biases_stay_fp32(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, zaya, PRECISION_BF16);
    write_good(&f, false);
    Safetensors file = open_tensors(&f);
    const StoredTensor *biases = find(&file, "model.layers.1.mlp.gate.balancing_biases", STORED_F32, 1, (int64_t[]){5});
    assert_memory_equal(biases->data, parameter(&f, biases->name), 5 * sizeof(float));
    const StoredTensor *table = find(&file, "model.embed_tokens.weight", STORED_BF16, 2, (int64_t[]){320, 24});
    const float *expected = parameter(&f, table->name);
    for (int i = 0; i < 320 * 24; i++) {
        uint16_t half;
        float value;
        memcpy(&half, (const char *)table->data + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&value, &bits, sizeof value);
        assert_true(fabsf(value - expected[i]) <= ldexpf(fabsf(expected[i]), -8)); /* half a unit of the eighth bit */
    }
    safetensors_close(&file);
    fixture_stop(&f);
}

/* gate_up_proj [experts, gate rows then up rows, width] is w1 and w3 of every expert. */
static void the_experts_of_mixtral_are_stored_one_by_one(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, mixtral, PRECISION_FP32);
    write_good(&f, false);
    Safetensors file = open_tensors(&f);
    assert_int_equal(file.count, 2 + 2 * (2 + 4 + 1 + 3 * 3)); /* norms, attention, router, experts */
    const float *gate_up = parameter(&f, "model.layers.1.mlp.experts.gate_up_proj"),
                *down = parameter(&f, "model.layers.1.mlp.experts.down_proj");
    for (int e = 0; e < 3; e++)
        for (int i = 1; i <= 3; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.1.block_sparse_moe.experts.%d.w%d.weight", e, i);
            const StoredTensor *tensor = find(&file, name, STORED_F32, 2, i == 2 ? (int64_t[]){16, 12} : (int64_t[]){12, 16});
            const float *expected = i == 2 ? down + e * 16 * 12 : gate_up + (2 * e + (i == 3)) * 12 * 16;
            assert_memory_equal(tensor->data, expected, 12 * 16 * sizeof(float));
        }
    find(&file, "model.layers.0.block_sparse_moe.gate.weight", STORED_F32, 2, (int64_t[]){3, 16});
    assert_null(safetensors_find(&file, "lm_head.weight"));
    safetensors_close(&file);
    fixture_stop(&f);
}

/* The nearest code of all that are finite, by their definition; `exponent` is that of the row's scale. */
static float nearest_code(float x, int exponent) {
    float best = 0;
    for (int code = 0; code < 256; code++) {
        float y = ldexpf(fp8_to_float((uint8_t)code, fp8_format(FP8_E4M3, false)), exponent);
        if (fabsf(y - x) < fabsf(best - x)) best = y;
    }
    return best;
}

static void linear_layers_in_fp8_have_the_nearest_codes_and_a_power_of_two_for_each_row(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, fp8, PRECISION_BF16);
    f.export.fp8 = true;
    write_good(&f, false);
    Safetensors file = open_tensors(&f);
    assert_int_equal(file.count, 3 + 2 * (2 + 2 * 7)); /* tables and the last norm; norms, matrices with scales */
    find(&file, "lm_head.weight", STORED_BF16, 2, (int64_t[]){f.config.model.vocabulary, 32});
    find(&file, "model.layers.1.input_layernorm.weight", STORED_BF16, 1, (int64_t[]){32});
    const StoredTensor *values = find(&file, "model.layers.1.mlp.down_proj.weight", STORED_F8_E4M3, 2, (int64_t[]){32, 48});
    const StoredTensor *scales = find(&file, "model.layers.1.mlp.down_proj.weight_scale", STORED_F32, 2, (int64_t[]){32, 1});
    const float *weights = parameter(&f, values->name);
    for (int r = 0; r < 32; r++) {
        float scale, amax = 0;
        int exponent;
        memcpy(&scale, (const char *)scales->data + 4 * r, sizeof scale);
        assert_true(frexpf(scale, &exponent) == 0.5F);
        for (int i = 0; i < 48; i++) {
            float x = bf16_to_float(bf16_from_float(weights[r * 48 + i])),
                  y = scale * fp8_to_float(((const uint8_t *)values->data)[r * 48 + i], fp8_format(FP8_E4M3, false));
            amax = fmaxf(amax, fabsf(x));
            /* Of two that are equally near either may be found. */
            assert_true(fabsf(y - x) == fabsf(nearest_code(x, exponent - 1) - x));
        }
        assert_true(amax <= 448 * scale && amax > 224 * scale);
    }
    safetensors_close(&file);
    json_t *config = read_json(&f, "config.json"), *quantized = json_object_get(config, "quantization_config");
    assert_string_equal(string(config, "dtype"), "bfloat16");
    assert_string_equal(string(quantized, "quant_method"), "compressed-tensors");
    assert_string_equal(string(quantized, "format"), "float-quantized");
    json_decref(config);
    fixture_stop(&f);
}

static void a_weight_that_is_not_finite_is_refused_in_fp8_too(void **state) {
    (void)state;
    static const float values[] = {INFINITY, NAN};
    for (int i = 0; i < 2; i++) {
        Fixture f;
        Error error = {0};
        fixture_start(&f, fp8, PRECISION_FP32);
        f.export.fp8 = true;
        ((float *)parameter(&f, "model.layers.0.mlp.up_proj.weight"))[5] = values[i];
        assert_false(hf_write(&f.export, f.out, false, &error));
        assert_int_equal(error.code, ERROR_NUMERICS);
        assert_mentions(error.message, "model.layers.0.mlp.up_proj.weight 5");
        fixture_stop(&f);
    }
}

static void models_that_not_all_read_in_fp8_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *const *settings;
        const char *text;
    } cases[] = {
        {zaya, "not both ZayaForCausalLM FP8"}, {mixtral, "not both MixtralForCausalLM FP8"}, {llama, "model.ffn is 40, multiple of 16"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        fixture_start(&f, cases[i].settings, PRECISION_FP32);
        f.export.fp8 = true;
        assert_refused(&f, false, cases[i].text);
        fixture_stop(&f);
    }
}

static void numbers_have_the_fewest_digits_that_read_back_equal(void **state) {
    (void)state;
    const double stds[] = {0.02, 0.1 + 0.2}; /* the second needs 17 digits */
    const char *const texts[] = {"\"initializer_range\": 0.02,", "\"initializer_range\": 0.30000000000000004,"};
    for (int i = 0; i < 2; i++) {
        Fixture f;
        fixture_start(&f, llama, PRECISION_FP32);
        f.config.model.init_std = stds[i];
        write_good(&f, false);
        Error error = {0};
        char *path = memory_format("%s/config.json", f.out), *text = file_read(path, 1 << 20, NULL, &error);
        assert_non_null(strstr(text, texts[i]));
        if (i == 0) assert_non_null(strstr(text, "\"rms_norm_eps\": 1e-5,"));
        json_t *config = read_json(&f, "config.json");
        assert_true(real(config, "initializer_range") == stds[i] && real(config, "rms_norm_eps") == 1e-5);
        json_decref(config);
        free(text);
        free(path);
        fixture_stop(&f);
    }
}

/* -- The tokenizer ------------------------------------------------------------------------------------------------- */

static void token_ids_are_the_bytes(void **state) {
    (void)state;
    json_t *tokenizer = byte_tokenizer(), *model = json_object_get(tokenizer, "model"), *vocabulary = json_object_get(model, "vocab");
    assert_int_equal(json_object_size(vocabulary), 256);
    assert_int_equal(json_array_size(json_object_get(model, "merges")), 0);
    const struct {
        const char *text;
        int id;
    } known[] = {{"A", 'A'}, {"Ġ", ' '}, {"Ċ", '\n'}, {"Ā", 0}, {"ÿ", 255}, {"¡", 161}, {"Ń", 173}, {"ġ", 127}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_int_equal(integer(vocabulary, known[i].text), known[i].id);
    json_t *separator = json_array_get(json_object_get(tokenizer, "added_tokens"), 0);
    assert_int_equal(integer(separator, "id"), BYTE_SEPARATOR);
    assert_true(json_is_true(json_object_get(separator, "special")));
    json_decref(tokenizer);
}

static void other_tokenizers_are_not_pretended(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, llama, PRECISION_FP32);
    f.export.bytes = false;
    write_good(&f, false);
    assert_false(exists(&f, "tokenizer.json"));
    json_t *config = read_json(&f, "config.json");
    assert_true(json_is_null(json_object_get(config, "eos_token_id")));
    json_decref(config);
    fixture_stop(&f);
}

/* -- Folders ------------------------------------------------------------------------------------------------------- */

static void put_file(const Fixture *f, const char *name) {
    Error error = {0};
    char *path = memory_format("%s/%s", f->out, name);
    assert_true(file_make_folder(f->out, &error) && file_write(path, "mine", 4, &error));
    free(path);
}

static void a_folder_in_use_is_not_touched_without_overwrite(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, llama, PRECISION_FP32);
    put_file(&f, "config.json");
    assert_refused(&f, false, "empty");
    assert_false(exists(&f, "model.safetensors"));
    write_good(&f, true);
    assert_true(exists(&f, "model.safetensors"));
    fixture_stop(&f);
}

static void overwrite_replaces_only_what_an_export_writes(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, llama, PRECISION_FP32);
    write_good(&f, false);
    put_file(&f, "notes.txt");
    assert_refused(&f, true, "notes.txt");
    assert_true(exists(&f, "notes.txt"));
    assert_true(exists(&f, "model.safetensors"));
    fixture_stop(&f);
}

static void overwrite_leaves_nothing_of_the_earlier_export(void **state) {
    (void)state;
    Fixture f;
    fixture_start(&f, llama, PRECISION_FP32);
    write_good(&f, false);
    assert_true(exists(&f, "tokenizer.json"));
    f.export.bytes = false;
    write_good(&f, true);
    assert_false(exists(&f, "tokenizer.json"));
    fixture_stop(&f);
}

static void an_empty_folder_and_a_trailing_slash_are_fine(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    fixture_start(&f, llama, PRECISION_FP32);
    assert_true(file_make_folder(f.out, &error));
    char *slashed = memory_format("%s//", f.out);
    assert_true(hf_write(&f.export, slashed, false, &error));
    assert_true(exists(&f, "model.safetensors"));
    free(slashed);
    fixture_stop(&f);
}

static void a_folder_that_cannot_be_made_is_an_error(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    fixture_start(&f, llama, PRECISION_FP32);
    put_file(&f, "file");
    char *inside = memory_format("%s/file/out", f.out);
    assert_false(hf_write(&f.export, inside, false, &error));
    assert_int_equal(error.code, ERROR_CHECKPOINT);
    free(inside);
    fixture_stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_configuration_of_zaya_has_its_keys),
        cmocka_unit_test(the_configuration_of_llama_has_the_scaling_of_positions),
        cmocka_unit_test(a_llama_with_a_window_is_a_mistral),
        cmocka_unit_test(a_llama_with_experts_is_a_mixtral),
        cmocka_unit_test(what_a_class_cannot_express_is_refused_by_name),
        cmocka_unit_test(biases_that_mixtral_lacks_are_refused),
        cmocka_unit_test(every_parameter_of_zaya_is_stored_under_its_name),
        cmocka_unit_test(bf16_is_rounded_to_nearest_and_balancing_biases_stay_fp32),
        cmocka_unit_test(the_experts_of_mixtral_are_stored_one_by_one),
        cmocka_unit_test(linear_layers_in_fp8_have_the_nearest_codes_and_a_power_of_two_for_each_row),
        cmocka_unit_test(a_weight_that_is_not_finite_is_refused_in_fp8_too),
        cmocka_unit_test(models_that_not_all_read_in_fp8_are_refused),
        cmocka_unit_test(token_ids_are_the_bytes),
        cmocka_unit_test(numbers_have_the_fewest_digits_that_read_back_equal),
        cmocka_unit_test(other_tokenizers_are_not_pretended),
        cmocka_unit_test(a_folder_in_use_is_not_touched_without_overwrite),
        cmocka_unit_test(overwrite_replaces_only_what_an_export_writes),
        cmocka_unit_test(overwrite_leaves_nothing_of_the_earlier_export),
        cmocka_unit_test(an_empty_folder_and_a_trailing_slash_are_fine),
        cmocka_unit_test(a_folder_that_cannot_be_made_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
