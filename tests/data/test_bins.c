/* Tests of best-fit packing: each token of a document in one bin, few of them padding, the same bytes again, and batches
 * of bins. */
#include "support/data_files.h"

#include "base/rng.h"
#include "data/loader.h"

static BinPlan open_plan(const ShardSet *set, int64_t length) {
    Error error = {0};
    BinPlan plan;
    if (!bin_plan_open(&plan, "plans", "c", set, length, &error)) fail_msg("%s", error.message);
    return plan;
}

static void documents_go_where_they_fit_best(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){3, 6, 19, 2, 5, 4, 1}, 7); /* from tokens 0, 3, 9, 28, 30, 35, 39 on */
    BinPlan plan = open_plan(&set, 8);
    static const BinPart parts[] = {{9, 8}, {17, 8}, {3, 6}, {28, 2}, {30, 5}, {0, 3}, {35, 4}, {25, 3}, {39, 1}};
    static const int64_t first_part[] = {0, 1, 2, 4, 6, 9};
    assert_int_equal(plan.bins, 5);
    assert_int_equal(plan.inputs, 40);
    assert_memory_equal(plan.parts, parts, sizeof parts);
    assert_memory_equal(plan.first_part, first_part, sizeof first_part);
    bin_plan_close(&plan);
    shard_set_close(&set);
}

/* Documents of 0 to `most` tokens, short ones more often. */
static ShardSet random_set(uint64_t seed, int64_t documents, int64_t most) {
    int64_t *lengths = memory_allocate((size_t)documents * sizeof *lengths);
    for (int64_t i = 0; i < documents; i++) {
        double u = rng_uniform(seed, 99, (uint64_t)i);
        lengths[i] = (int64_t)(u * u * u * (double)most);
    }
    ShardSet set = counting_set(lengths, documents);
    free(lengths);
    return set;
}

static void assert_each_token_in_one_bin(const ShardSet *set, const BinPlan *plan) {
    char *seen = memory_allocate((size_t)set->token_count);
    DocumentCursor cursor = {.set = set};
    Error error = {0};
    int64_t *document_end = memory_allocate((size_t)set->token_count * sizeof *document_end), start, end;
    while (document_cursor_next(&cursor, &start, &end, &error) && end >= 0)
        for (int64_t i = start; i < end; i++) document_end[i] = end;
    for (int64_t bin = 0; bin < plan->bins; bin++) {
        int64_t used = 0;
        for (int64_t p = plan->first_part[bin]; p < plan->first_part[bin + 1]; p++) {
            BinPart part = plan->parts[p];
            used += part.count;
            assert_true(part.count >= 1 && part.start + part.count <= document_end[part.start]); /* of one document */
            assert_true(part.count == plan->length || part.start + part.count == document_end[part.start]);
            for (int64_t i = 0; i < part.count; i++) assert_false(seen[part.start + i]++);
        }
        assert_in_range(used, 1, plan->length);
    }
    for (int64_t i = 0; i < set->token_count; i++) assert_true(seen[i]);
    assert_int_equal(plan->inputs, set->token_count);
    free(seen);
    free(document_end);
}

static void each_token_is_in_one_bin(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        ShardSet set = random_set(seed, 1000, 3 + (int64_t)seed * 40);
        for (int64_t length = 1; length <= 5000; length = length * 7 + 1) {
            BinPlan plan = open_plan(&set, length);
            assert_each_token_in_one_bin(&set, &plan);
            bin_plan_close(&plan);
        }
        shard_set_close(&set);
    }
}

/* A plan is made window by window: more parts than one window of 2^20 has. */
static void windows_follow_one_another(void **state) {
    (void)state;
    ShardSet set = random_set(1, 2000000, 10);
    BinPlan plan = open_plan(&set, 64);
    assert_true(plan.first_part[plan.bins] > 1 << 20);
    assert_each_token_in_one_bin(&set, &plan);
    assert_true(plan.bins * 64 - plan.inputs < 2 * 64); /* parts this short fill all bins of a window but the last */
    bin_plan_close(&plan);
    shard_set_close(&set);
}

static void little_is_padding_where_documents_are_short(void **state) {
    (void)state;
    ShardSet set = random_set(2, 20000, 3000);
    BinPlan plan = open_plan(&set, 2048);
    int64_t padding = plan.bins * 2048 - plan.inputs;
    assert_true((double)padding < 0.001 * (double)plan.inputs);
    bin_plan_close(&plan);
    shard_set_close(&set);
}

static void damage_and_other_contents_make_the_plan_anew(void **state) {
    (void)state;
    ShardSet set = random_set(3, 200, 100);
    BinPlan plan = open_plan(&set, 64);
    bin_plan_close(&plan);
    size_t size, again_size;
    unsigned char *bytes = read_bytes("plans/c-64.bins", &size);
    FileId made = file_id("plans/c-64.bins");
    plan = open_plan(&set, 64);
    bin_plan_close(&plan);
    assert_true(file_id_same(made, file_id("plans/c-64.bins"))); /* nothing was written */
    for (size_t at = 0; at < size; at += size / 50 + 1) {
        bytes[at] ^= 4;
        write_bytes("plans/c-64.bins", bytes, size);
        bytes[at] ^= 4;
        plan = open_plan(&set, 64);
        bin_plan_close(&plan);
        unsigned char *again = read_bytes("plans/c-64.bins", &again_size);
        assert_int_equal(again_size, size);
        assert_memory_equal(again, bytes, size);
        free(again);
    }
    write_bytes("plans/c-64.bins", bytes, size / 2);
    plan = open_plan(&set, 64);
    assert_each_token_in_one_bin(&set, &plan);
    bin_plan_close(&plan);
    shard_set_close(&set);
    set = random_set(4, 200, 100);
    plan = open_plan(&set, 64);
    assert_each_token_in_one_bin(&set, &plan);
    bin_plan_close(&plan);
    shard_set_close(&set);
    free(bytes);
}

static void a_batch_of_bins_restarts_at_each_document(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){3, 6, 10}, 3); /* bins of tokens 9..16; 3..8; 0..2 with 17 and 18 */
    BinPlan plan = open_plan(&set, 8);
    Error error = {0};
    LoaderSource source = {&set, &plan};
    Order *order = order_of_one(0, false, "c", plan.bins * 8, 8, &error);
    LoaderOptions options = {.order = order, .sources = &source, .sequences = 3, .vocabulary = 19, .separator = -1, .document_mask = true};
    Loader *loader = loader_open(&options, 0, &error);
    const Batch *batch = loader_next(loader, &error);
    static const int32_t tokens[] = {9, 10, 11, 12, 13, 14, 15, 16, 3, 4, 5, 6, 7, 8, 17, 18, 0, 1, 2, 0, 0, 0, 0, 0};
    static const int32_t targets[] = {10, 11, 12, 13, 14, 15, 16, 17, 4, 5, 6, 7, 8, -1, 18, -1, 1, 2, -1, -1, -1, -1, -1, -1};
    static const int32_t positions[] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2, 0, 0, 0, 0, 0};
    assert_memory_equal(batch->tokens, tokens, sizeof tokens);
    assert_memory_equal(batch->targets, targets, sizeof targets);
    assert_memory_equal(batch->positions, positions, sizeof positions);
    loader_close(loader);
    order_free(order);
    bin_plan_close(&plan);
    shard_set_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(documents_go_where_they_fit_best),
        IN_FOLDER(each_token_is_in_one_bin),
        IN_FOLDER(windows_follow_one_another),
        IN_FOLDER(little_is_padding_where_documents_are_short),
        IN_FOLDER(damage_and_other_contents_make_the_plan_anew),
        IN_FOLDER(a_batch_of_bins_restarts_at_each_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
