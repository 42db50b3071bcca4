/* The power fails before every single change that a command makes to the disk, and all that was not synced by then is
 * lost, or parts of it (support/disk_log.h). What a command made that ended with exit code 0 is there all the same.
 * Before its end there may be what was there before, or the new thing, or nothing that smelt would use; never silently
 * something else. The first test checks the model of the disk itself. */
#include "data/shard_set.h"
#include "support/power_cut.h"

/* -- The model of the disk ----------------------------------------------------------------------------------------- */

/* A shell script, and what the file disk/a holds after a power cut at its end; NULL: there is none. */
typedef struct ModelCase {
    const char *script;
    const DiskChance *chance;
    const char *a;
} ModelCase;

static void the_model_forgets_what_was_not_synced(void **state) {
    (void)state;
    const DiskChance *nothing = &chances[0], *everything = &chances[1], *names = &chances[2];
    const ModelCase cases[] = {
        {"printf new >disk/a", nothing, NULL},
        {"printf new >disk/a", everything, "new"},
        {"printf new >disk/a; sync disk/a", nothing, NULL},
        {"printf new >disk/a; sync disk/a", names, "new"},
        {"printf new >disk/a; sync disk", nothing, ""},
        {"printf new >disk/a; sync disk disk/a", nothing, "new"},
        {"printf old >disk/a; sync disk disk/a; printf new >>disk/a", nothing, "old"},
        {"printf old >disk/a; sync disk disk/a; printf new >disk/b; sync disk/b; mv disk/b disk/a", nothing, "old"},
        {"printf old >disk/a; sync disk disk/a; printf new >disk/b; mv disk/b disk/a; sync disk", nothing, ""},
        {"printf old >disk/a; sync disk disk/a; printf new >disk/b; mv disk/b disk/a", names, ""},
        {"printf old >disk/a; sync disk disk/a; rm disk/a", nothing, "old"},
        {"printf old >disk/a; sync disk disk/a; rm disk/a; sync disk", nothing, NULL},
        {"mkdir disk/c; printf new >disk/c/a; sync disk/c disk/c/a; mv disk/c/a disk/a; sync disk", nothing, "new"},
        {"printf new >disk/b; sync disk/b; ln disk/b disk/a; sync disk", nothing, "new"},
        {"printf new >disk/a; sync", nothing, "new"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ModelCase *c = &cases[i];
        make_absent("disk");
        assert_int_equal(mkdir("disk", 0777), 0);
        write_text("script", c->script);
        DiskLog *log = record("disk", "/bin/sh", "script");
        disk_log_cut(log, disk_log_count(log), c->chance, "cut");
        SCOPED_FREE char *text = is_absent("cut/a") ? NULL : read_text("cut/a");
        if (!text != !c->a || (text && strcmp(text, c->a) != 0)) fail_msg("%s, %s: %s", c->script, c->chance->name, text ? text : "absent");
        disk_log_free(log);
    }
}

/* -- What commands make -------------------------------------------------------------------------------------------- */

/* A command makes files in the folder "out", perhaps in place of older ones. */
typedef struct Product {
    const char *name, *older, *words;                 /* `older` makes the older ones, NULL: there are none */
    const char *const *paths;                         /* of what it makes, below "out"; closed by NULL */
    bool (*accepts)(const struct Product *, Error *); /* whether what is in "cut" would be used; NULL: when it exists */
    void (*change_older)(void);                       /* NULL: not at all */
} Product;

/* Whether "cut" holds all that `truth` holds of a product. */
static bool holds_product(const Product *product, const char *truth) {
    bool same = true;
    for (const char *const *path = product->paths; *path && same; path++) {
        SCOPED_FREE char *cut = memory_format("cut/%s", *path), *right = memory_format("%s/%s", truth, *path);
        same = holds(cut, right);
    }
    return same;
}

static void check_product(const Case *c, void *context) {
    const Product *product = context;
    Error error = {0};
    bool made = holds_product(product, "out"), kept = holds_product(product, "old");
    if (made || (kept && !c->ended)) return;
    if (c->ended) case_fail(c, "the command had ended, and what it made is not there");
    if (!product->accepts || product->accepts(product, &error)) case_fail(c, "what is there is neither the old nor the new one");
}

/* The two parts of a split belong together, so one of them must be refused unless both are old or new. */
static bool accepts_shards(const Product *product, Error *error) {
    bool good = true;
    for (const char *const *path = product->paths; *path && good; path += 2) {
        SCOPED(shard_set_close) ShardSet set = {0};
        SCOPED_FREE char *prefix = memory_format("cut/%.*s", (int)strlen(*path) - (int)strlen(".bin"), *path);
        good = shard_set_open(&set, prefix, error) && shard_set_verify(&set, error);
    }
    return good;
}

static bool accepts_adapters(const Product *product, Error *error) {
    (void)product, (void)error;
    return !is_absent("cut/adapter/adapter_config.json");
}

enum { DRAWS = 10 };

static void check_command(const Product *product) {
    assert_int_equal(mkdir("out", 0777), 0);
    if (product->older) make(product->older);
    if (product->change_older) product->change_older();
    copy_tree("out", "old");
    DiskLog *log = record("out", getenv("SMELT"), product->words);
    check_cuts(product->name, log, DRAWS, check_product, (void *)product);
    disk_log_free(log);
    make_absent("out");
    make_absent("old");
}

/* Of the same size as "text", so that no size tells their shards apart. */
static void write_other_text(void) {
    SCOPED_FREE char *text = read_text("text");
    for (char *at = text; (at = strchr(at, 'e'));) *at = 'u';
    write_text("other", text);
}

/* Megatron's indices have no checksums, which would prove that they belong to the tokens beside them. */
static void remove_checksums(void) {
    enum { CHECKSUM_BYTES = 24 };
    struct stat status;
    assert_int_equal(stat("out/text.idx", &status), 0);
    assert_int_equal(truncate("out/text.idx", status.st_size - CHECKSUM_BYTES), 0);
}

static void shards_survive(void **state) {
    (void)state;
    static const char *const one[] = {"text.bin", "text.idx", "text.tokenizer", NULL};
    static const char *const split[] = {
        "text-train.bin", "text-train.idx", "text-train.tokenizer", "text-valid.bin", "text-valid.idx", "text-valid.tokenizer", NULL};
    write_other_text();
    check_command(&(Product){"a shard", NULL, "data pack text out/text", one, accepts_shards});
    check_command(
        &(Product){"a shard over an older one", "data pack other out/text", "data pack text out/text overwrite=true", one, accepts_shards});
    check_command(&(Product){"a shard over Megatron's", "data pack other out/text", "data pack text out/text overwrite=true", one,
        accepts_shards, remove_checksums});
    check_command(&(Product){"a split", NULL, "data pack text out/text valid=0.2", split, accepts_shards});
    check_command(&(Product){"a split over an older one", "data pack other out/text valid=0.2",
        "data pack text out/text valid=0.2 overwrite=true", split, accepts_shards});
}

static void tokenizers_survive(void **state) {
    (void)state;
    static const char *const paths[] = {"tokenizer.json", NULL};
    const char *words = "data train-tokenizer text out/tokenizer.json vocabulary=300 overwrite=true";
    check_command(&(Product){"a tokenizer", NULL, words, paths});
    write_other_text();
    check_command(
        &(Product){"a tokenizer over an older one", "data train-tokenizer other out/tokenizer.json vocabulary=300", words, paths});
}

static void converted_models_survive(void **state) {
    (void)state;
    static const char *const folder[] = {"model", NULL}, *const file[] = {"gpt2.bin", NULL}, *const adapter[] = {"adapter", NULL};
    make("train " MODEL " run=first");
    make("train " MODEL " run=second seed=2");
    check_command(&(Product){"a folder", NULL, "convert second out/model", folder});
    check_command(&(Product){"a folder over an older one", "convert first out/model", "convert second out/model overwrite=true", folder});
    make("data pack text shard");
    make("train " MODEL " data.train=shard data.tokenizer=none run=gpt2 model.family=gpt2 model.experts=0 model.kv_heads=2 model.ffn=64 "
         "model.tied=true model.norm_epsilon=1e-5 "
         "model.vocabulary=50257 schedule.warmup=0 steps=1");
    check_command(&(Product){"a file of llm.c", NULL, "convert gpt2 out/gpt2.bin tokenizer=none", file});
    make("convert second base");
    make("train " MODEL " run=lora init=base lora.rank=2");
    check_command(&(Product){"adapters", NULL, "convert lora out/adapter adapter=true", adapter, accepts_adapters});
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(the_model_forgets_what_was_not_synced),
        TRAIN_TEST(shards_survive),
        TRAIN_TEST(tokenizers_survive),
        TRAIN_TEST(converted_models_survive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
