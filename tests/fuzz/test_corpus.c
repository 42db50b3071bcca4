/* Replays tests/corpus: every file of tests/corpus/NAME goes through the entry of tests/fuzz/NAME.c, which aborts
 * when something is wrong. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define FUZZ_REPLAY
#include "channel.c"
#include "hf_config.c"
#include "options.c"
#include "safetensors.c"
#include "tokenizer.c"

/* A block of just the file's size, so that AddressSanitizer sees a read behind it. */
static void replay_file(void (*fuzz)(const uint8_t *data, size_t size), const char *path) {
    Error error = {0};
    int64_t length;
    char *content = file_read(path, 1 << 20, &length, &error);
    assert_non_null(content);
    uint8_t *exact = memory_allocate(length > 0 ? (size_t)length : 1);
    memcpy(exact, content, (size_t)length);
    free(content);
    fuzz(exact, (size_t)length);
    free(exact);
}

/* Ends the program by the entry's abort, after the name of the file. */
static void replay(const char *name, void (*fuzz)(const uint8_t *data, size_t size)) {
    char *folder = memory_format("tests/corpus/%s", name);
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(entries));) {
        if (entry->d_name[0] == '.') continue;
        char *path = memory_format("%s/%s", folder, entry->d_name);
        print_message("%s\n", path);
        replay_file(fuzz, path);
        free(path);
        count++;
    }
    closedir(entries);
    free(folder);
    assert_true(count > 0);
}

static void the_corpus_of_network_messages_holds(void **state) {
    (void)state;
    replay("channel", fuzz_channel);
}

static void the_corpus_of_model_configurations_holds(void **state) {
    (void)state;
    replay("hf_config", fuzz_hf_config);
}

static void the_corpus_of_yaml_holds(void **state) {
    (void)state;
    replay("options", fuzz_options);
}

static void the_corpus_of_safetensors_holds(void **state) {
    (void)state;
    replay("safetensors", fuzz_safetensors);
}

static void the_corpus_of_tokenizers_holds(void **state) {
    (void)state;
    replay("tokenizer", fuzz_tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_corpus_of_network_messages_holds),
        cmocka_unit_test(the_corpus_of_model_configurations_holds),
        cmocka_unit_test(the_corpus_of_yaml_holds),
        cmocka_unit_test(the_corpus_of_safetensors_holds),
        cmocka_unit_test(the_corpus_of_tokenizers_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
