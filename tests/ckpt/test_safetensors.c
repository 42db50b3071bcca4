/* safetensors files: what was written comes back, and no file, however damaged, is opened to tensors that are not in
 * it. The Python package `safetensors` judges these headers the same way, except that it lets pass what the description
 * of the format forbids: a header that starts with a space, and a name given twice. */
#include "support/ckpt_fixture.h"

static void safetensors_come_back_with_names_types_shapes_and_bytes(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/all.safetensors", fixture->folder);
    unsigned char bytes[STORED_F8_E4M3 + 1][6 * 8];
    StoredTensor tensors[STORED_F8_E4M3 + 3] = {0};
    for (int type = 0; type <= STORED_F8_E4M3; type++) {
        for (size_t i = 0; i < sizeof bytes[0]; i++) bytes[type][i] = (unsigned char)(type * 50 + (int)i);
        tensors[type] = (StoredTensor){.name = stored_type_name(type), .type = type, .rank = 2, .shape = {2, 3}, .data = bytes[type]};
    }
    tensors[STORED_F8_E4M3 + 1] = (StoredTensor){.name = "scalar \"\xc3\xa4\"", .type = STORED_F32, .data = bytes[0]};
    tensors[STORED_F8_E4M3 + 2] = (StoredTensor){.name = "empty", .type = STORED_F32, .rank = 2, .shape = {0, 7}};
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    Error error = {0};
    assert_true(safetensors_write(path, tensors, STORED_F8_E4M3 + 3, metadata, &error));
    json_decref(metadata);

    Safetensors file;
    assert_true(safetensors_open(&file, path, &error));
    assert_int_equal(file.count, STORED_F8_E4M3 + 3);
    assert_string_equal(json_string_value(json_object_get(file.metadata, "format")), "pt");
    for (int i = 0; i <= STORED_F8_E4M3 + 2; i++) {
        const StoredTensor *tensor = safetensors_find(&file, tensors[i].name);
        assert_non_null(tensor);
        assert_int_equal(tensor->type, tensors[i].type);
        assert_int_equal(tensor->rank, tensors[i].rank);
        assert_memory_equal(tensor->shape, tensors[i].shape, sizeof tensor->shape);
        size_t elements = i <= STORED_F8_E4M3 ? 6 : i == STORED_F8_E4M3 + 1;
        if (elements > 0) assert_memory_equal(tensor->data, tensors[i].data, elements * stored_type_bytes(tensor->type));
    }
    assert_null(safetensors_find(&file, "absent"));
    safetensors_close(&file);
    free(path);
}

static void safetensors_data_starts_at_a_multiple_of_64(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/aligned.safetensors", fixture->folder);
    char name[80] = "";
    for (int length = 1; length < 70; length++) {
        memset(name, 'x', (size_t)length);
        StoredTensor tensor = {.name = name, .type = STORED_U8, .data = "z", .rank = 1, .shape = {1}};
        Error error = {0};
        assert_true(safetensors_write(path, &tensor, 1, NULL, &error));
        size_t bytes;
        char *text = (char *)read_bytes(path, &bytes);
        assert_int_equal(bytes % 64, 1);
        assert_int_equal(text[bytes - 1], 'z');
        free(text);
    }
    free(path);
}

static void safetensors_with_two_tensors_of_one_name_are_not_written(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/twice.safetensors", fixture->folder);
    StoredTensor tensors[2] = {{.name = "twin", .type = STORED_U8, .data = "a"}, {.name = "twin", .type = STORED_U8, .data = "b"}};
    Error error = {0};
    assert_false(safetensors_write(path, tensors, 2, NULL, &error));
    assert_message(&error, "twin");
    assert_int_not_equal(access(path, F_OK), 0);
    free(path);
}

/* Writes a file of a header and `data_bytes` zeros, and opens it. */
static bool header_open(const Fixture *fixture, const char *header, size_t data_bytes, Error *error) {
    char *path = memory_format("%s/header.safetensors", fixture->folder);
    uint64_t length = strlen(header);
    char *bytes = memory_allocate(8 + length + data_bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    fixture_write(path, bytes, 8 + length + data_bytes);
    Safetensors file;
    bool good = safetensors_open(&file, path, error);
    if (good) safetensors_close(&file);
    free(bytes);
    free(path);
    return good;
}

static void safetensors_headers_that_lie_are_refused_with_the_reason(void **state) {
#define TENSOR(name, type, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
    static const struct {
        const char *header, *reason;
    } cases[] = {
        {"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", NULL},
        {"{" TENSOR("b", "F32", "[1]", "[4,8]") "," TENSOR("a", "F32", "[1]", "[0,4]") "}  ", NULL},
        {"{" TENSOR("a", "F8_E5M2", "[8]", "[0,8]") "}", "tensor a has dtype F8_E5M2"},
        {"{" TENSOR("a", "F32", "[1,1,1,1,1,2]", "[0,8]") "}", "tensor a 5 dimensions"},
        {"{" TENSOR("a", "F32", "[-2]", "[0,8]") "}", "tensor a dimensions"},
        {"{" TENSOR("a", "F32", "[2.0]", "[0,8]") "}", "tensor a dimensions"},
        {"{" TENSOR("a", "F32", "2", "[0,8]") "}", "tensor a dimensions"},
        {"{" TENSOR("a", "F32", "[3]", "[0,8]") "}", "tensor a 8 bytes shape"},
        {"{" TENSOR("a", "F32", "[1]", "[0,8]") "}", "tensor a 8 bytes shape"},
        {"{" TENSOR("a", "F32", "[4611686018427387906]", "[0,8]") "}", "tensor a 8 bytes shape"},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296,0]", "[0,0]") "}", "tensor a 0 bytes shape"},
        {"{" TENSOR("a", "F32", "[2]", "[8,0]") "}", "data_offsets 8 0"},
        {"{" TENSOR("a", "F32", "[2]", "[-8,0]") "}", "data_offsets -8 0"},
        {"{" TENSOR("a", "F32", "[4]", "[0,16]") "}", "data_offsets 0 16 8"},
        {"{" TENSOR("a", "F32", "[2]", "[0]") "}", "data_offsets of tensor a"},
        {"{" TENSOR("a", "F32", "[2]", "[0,\"8\"]") "}", "data_offsets of tensor a"},
        {"{" TENSOR("a", "F32", "[1]", "[4,8]") "}", "tensor a 4 0 gap"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "}", "4 bytes last tensor"},
        {"{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[1]", "[4,8]") "}", "tensor b 4 8 overlap"},
        {"{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("a", "F32", "[2]", "[0,8]") "}", "not valid JSON"},
        {"{\"a\":7}", "dtype (none)"},
        {"{" TENSOR("a\\nb", "F32", "[2]", "[0,8]") "}", "tensor 1 control character"},
        {"{\"__metadata__\":{\"\\u001b\":1}," TENSOR("a", "F32", "[2]", "[0,8]") "}", "__metadata__ control character"},
        {"{\"__metadata__\":{\"n\":1}," TENSOR("a", "F32", "[2]", "[0,8]") "}", "__metadata__ \"n\""},
        {"{\"__metadata__\":[]," TENSOR("a", "F32", "[2]", "[0,8]") "}", "__metadata__ object"},
        {"{" TENSOR("a", "F32", "[2]", "[0,8]"), "not valid JSON"},
        {" {}", "does not start with '{'"},
        {"[]", "does not start with '{'"},
        {"", "does not start with '{'"},
        {"{\"a\\u0000b\":1}", "not valid JSON"},
        {"{\"\xff\":1}", "not valid JSON"},
    };
#undef TENSOR
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Error error = {0};
        bool good = header_open(*state, cases[i].header, 8, &error);
        if (good != (cases[i].reason == NULL)) fail_msg("%s: %s", cases[i].header, good ? "was accepted" : error.message);
        if (!good) assert_message(&error, cases[i].reason);
    }
}

/* Parsed, 84 MB of such headers took 27 s and 1.6 GB. A string of any length is one value. */
static void safetensors_headers_of_millions_of_values_are_refused_unparsed(void **state) {
    static const char *const parts[] = {"0,", "[],", "\"n\":{},"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const size_t count = 3000001, size = strlen(parts[i]);
        char *header = memory_allocate(count * size + 8);
        header[0] = '{';
        for (size_t k = 0; k < count; k++) memcpy(header + 1 + k * size, parts[i], size);
        Error error = {0};
        assert_false(header_open(*state, header, 8, &error));
        assert_message(&error, "3000000 commas brackets");
        free(header);
    }
    char *header =
        memory_format("{\"__metadata__\":{\"n\":\"%04000000d\\\",\"},\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 0);
    for (char *at = strchr(header, '0'); *at == '0'; at++) *at = ',';
    Error error = {0};
    if (!header_open(*state, header, 8, &error)) fail_msg("%s", error.message);
    free(header);
}

static void safetensors_with_an_impossible_header_length_are_refused(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/length.safetensors", fixture->folder);
    const uint64_t lengths[] = {57, 100000001, INT64_MAX, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        char bytes[64] = {0};
        memcpy(bytes, &lengths[i], 8);
        fixture_write(path, bytes, sizeof bytes);
        Safetensors file;
        Error error = {0};
        assert_false(safetensors_open(&file, path, &error));
        assert_message(&error, "announce a header");
    }
    free(path);
}

/* A valid file; the caller frees. */
static char *sample_file(const char *path, size_t *length) {
    float data[24] = {1, 2, 3};
    StoredTensor tensors[3] = {{.name = "wte", .type = STORED_F32, .rank = 2, .shape = {3, 4}, .data = data},
        {.name = "bias", .type = STORED_BF16, .rank = 1, .shape = {8}, .data = data},
        {.name = "ids", .type = STORED_U8, .rank = 3, .shape = {1, 2, 3}, .data = data}};
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    Error error = {0};
    assert_true(safetensors_write(path, tensors, 3, metadata, &error));
    json_decref(metadata);
    return (char *)read_bytes(path, length);
}

static void safetensors_truncated_anywhere_are_refused(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/short.safetensors", fixture->folder);
    size_t length;
    char *bytes = sample_file(path, &length);
    for (size_t kept = 0; kept < length; kept++) {
        fixture_write(path, bytes, kept);
        Safetensors file;
        Error error = {0};
        assert_false(safetensors_open(&file, path, &error));
        assert_int_equal(error.code, ERROR_CHECKPOINT);
    }
    free(bytes);
    free(path);
}

static void safetensors_with_random_damage_are_refused_or_safe_to_use(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/fuzzed.safetensors", fixture->folder);
    size_t length;
    char *original = sample_file(path, &length), *bytes = memory_allocate(length);
    static const char alphabet[] = "0123456789-[]{},:\"eF. \\";
    srand(1);
    int accepted = 0;
    unsigned sum = 0;
    for (int round = 0; round < 8000; round++) {
        memcpy(bytes, original, length);
        for (int changes = 1 + rand() % 3; changes > 0; changes--) {
            size_t at = (size_t)rand() % length;
            bytes[at] = (char)(rand() % 2 ? alphabet[(size_t)rand() % (sizeof alphabet - 1)] : rand() % 256);
        }
        fixture_write(path, bytes, rand() % 8 ? length : (size_t)rand() % length);
        Safetensors file;
        Error error = {0};
        if (!safetensors_open(&file, path, &error)) {
            assert_int_equal(error.code, ERROR_CHECKPOINT);
            continue;
        }
        accepted++;
        for (size_t i = 0; i < file.count; i++) {
            size_t size = stored_type_bytes(file.tensors[i].type);
            for (int k = 0; k < file.tensors[i].rank; k++) size *= (size_t)file.tensors[i].shape[k];
            for (size_t k = 0; k < size; k++) sum += ((const unsigned char *)file.tensors[i].data)[k];
        }
        safetensors_close(&file);
    }
    assert_true(sum > 0);
    assert_true(accepted > 100); /* damage in data and names is none of the header's business */
    free(bytes);
    free(original);
    free(path);
}

static void safetensors_never_wait_for_a_named_pipe(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/pipe", fixture->folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    Safetensors file;
    Error error = {0};
    assert_false(safetensors_open(&file, path, &error));
    assert_message(&error, "regular");
    free(path);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(safetensors_come_back_with_names_types_shapes_and_bytes),
        TEST(safetensors_data_starts_at_a_multiple_of_64),
        TEST(safetensors_with_two_tensors_of_one_name_are_not_written),
        TEST(safetensors_headers_that_lie_are_refused_with_the_reason),
        TEST(safetensors_headers_of_millions_of_values_are_refused_unparsed),
        TEST(safetensors_with_an_impossible_header_length_are_refused),
        TEST(safetensors_truncated_anywhere_are_refused),
        TEST(safetensors_with_random_damage_are_refused_or_safe_to_use),
        TEST(safetensors_never_wait_for_a_named_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
