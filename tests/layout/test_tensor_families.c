/* test_tensor.c for the other families: packed queries, keys and values (MPT, GPT-2), learned positions, ALiBi, biases after
 * a sum over ranks (GPT-2), compressed attention (ZAYA1), experts, sinks and biases of experts (gpt-oss),
 * latents (DeepSeek). */
#include "support/ranks_run.h"

#define SAVED "checkpoint.every=1 checkpoint.keep=100 model.heads=4 "

static void check(const char *settings, double tolerance, const int *sizes, int count) {
    if (!has_mpi()) skip();
    train_ranks(0, SAVED "%s run=one", settings);
    for (int i = 0; i < count; i++) {
        char run[32];
        snprintf(run, sizeof run, "shared-%d", sizes[i]);
        train_ranks(sizes[i], SAVED "%s layout.tp=%d run=%s", settings, sizes[i], run);
        compare_records(run, "one", "step", "loss");
        compare_records(run, "one", "evaluation", "loss");
        assert_same_tensors(run, "one", 1, "optimizer/momentum/", tolerance);
    }
}
#define CHECK(settings, tolerance, ...) check(settings, tolerance, (const int[]){__VA_ARGS__}, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))

static void mpt_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=mpt model.experts=0 model.kv_heads=4 model.clip_qkv=2 model.alibi_max=8", 1e-5, 2, 4);
}

static void gpt2_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=gpt2 model.experts=0 model.kv_heads=4 model.vocabulary=261 model.context=33", 1e-5, 2, 4);
}

/* One rank has all values of the current token, the other all of the token before. */
static void zaya_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=zaya model.kv_heads=2 model.auxiliary_loss=0.01", 1e-5, 2);
}

static void zaya_with_a_head_on_each_rank_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=zaya model.kv_heads=4 model.auxiliary_loss=0.01", 1e-5, 2, 4);
}

static void mixtral_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=llama model.kv_heads=2 model.experts_per_token=2", 1e-5, 2, 4);
}

static void gpt_oss_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=gpt_oss model.kv_heads=2 model.experts_per_token=2 model.renormalise=true model.qkv_bias=true model.window=9 "
          "model.window_period=2",
        1e-5, 2, 4);
}

static void deepseek_v2_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=deepseek model.kv_heads=4 model.experts_per_token=2 model.shared_experts=2 model.kv_lora_rank=12", 1e-5, 2, 4);
}

static void deepseek_v3_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=deepseek model.kv_heads=4 model.experts_per_token=2 model.shared_experts=1 model.router_scores=sigmoid "
          "model.renormalise=true model.expert_groups=2 model.q_lora_rank=10 model.kv_lora_rank=12",
        1e-5, 2, 4);
}

/* The second loss, its layer, and the embedding and the head that both losses train. */
static void multi_token_prediction_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=deepseek model.kv_heads=4 model.experts_per_token=2 model.shared_experts=1 model.router_scores=sigmoid "
          "model.renormalise=true model.kv_lora_rank=12 model.mtp=1",
        1e-5, 2, 4);
}

static void glm4_moe_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=glm model.kv_heads=2 model.experts_per_token=2 model.shared_experts=1 model.router_scores=sigmoid "
          "model.renormalise=true model.qk_norm=true model.qkv_bias=true",
        1e-5, 2, 4);
}

static void qwen3_5_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=qwen3_5 model.kv_heads=2 model.experts_per_token=2 model.shared_experts=1 model.renormalise=true "
          "model.attention_period=2 model.delta_heads=8 model.delta_key_heads=4 model.delta_key_dim=16 model.delta_value_dim=6 "
          "model.norm_epsilon=0.01",
        1e-5, 2, 4);
}

static void qwen3_next_learns_the_same(void **state) {
    (void)state;
    CHECK("model.family=qwen3_next model.kv_heads=2 model.experts_per_token=2 model.shared_experts=1 model.renormalise=true "
          "model.experts_first=1 model.dense_ffn=24 model.attention_period=2 model.delta_heads=8 model.delta_key_heads=4 "
          "model.delta_key_dim=12 model.delta_value_dim=8 model.norm_epsilon=0.01",
        1e-5, 2, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(mpt_learns_the_same),
        TRAIN_TEST(gpt2_learns_the_same),
        TRAIN_TEST(zaya_learns_the_same),
        TRAIN_TEST(zaya_with_a_head_on_each_rank_learns_the_same),
        TRAIN_TEST(mixtral_learns_the_same),
        TRAIN_TEST(gpt_oss_learns_the_same),
        TRAIN_TEST(deepseek_v2_learns_the_same),
        TRAIN_TEST(deepseek_v3_learns_the_same),
        TRAIN_TEST(multi_token_prediction_learns_the_same),
        TRAIN_TEST(glm4_moe_learns_the_same),
        TRAIN_TEST(qwen3_5_learns_the_same),
        TRAIN_TEST(qwen3_next_learns_the_same),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
