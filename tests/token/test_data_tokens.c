/* Tests of `smelt data encode` and `smelt data decode`: documents of three kinds, what names a tokenizer, answers on a
 * pipe that stays open, bounded memory, and input that is wrong. */
#include <sys/resource.h>

#include "support/data_files.h"
#include "support/mentions.h"
#include "support/sanitized.h"
#include "support/train_run.h"

static char golden[4096]; /* the folder of the tokenizers */

static ProcessResult shell(const char *command) {
    char *arguments[] = {"/bin/sh", "-c", (char *)command, NULL};
    Process process = process_start(arguments);
    return process_finish(&process);
}

static void expect(const char *command, int code, const char *output, const char *error) {
    ProcessResult result = shell(command);
    expect_code(&result, code, command);
    if (strcmp(result.output, output) != 0) fail_msg("%s: '%s' in place of '%s'", command, result.output, output);
    if (!mentions(result.errors, error)) fail_msg("%s: no '%s' in '%s'", command, error, result.errors);
    process_free(&result);
}

static void documents_come_back_from_their_ids(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2.json", "llama2.json", "spm-unigram.model", "spm-bpe-bytes.model"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        setenv("T", names[i], 1);
        expect("printf 'one two\\n\\nthree' | $SMELT data encode $GOLDEN/$T | $SMELT data decode $GOLDEN/$T", 0, "one two\n\nthree\n", "");
        expect("printf '{\"t\":\"a b\"}\\n\"c\"\\n' | $SMELT data encode $GOLDEN/$T documents=json field=t | "
               "$SMELT data decode $GOLDEN/$T documents=json",
            0, "\"a b\"\n\"c\"\n", "");
    }
    expect("printf 'a\\n\\nb \\377\\n' | $SMELT data encode $GOLDEN/gpt2.json documents=all | $SMELT data decode $GOLDEN/gpt2.json "
           "documents=all",
        0, "a\n\nb \377\n", "");
    expect("echo '[261, 261],261' | $SMELT data decode $GOLDEN/gpt2.json | wc -l", 0, "1\n", "");
    expect("printf '' | $SMELT data encode $GOLDEN/gpt2.json", 0, "", "");
}

static void special_tokens_are_text_unless_asked_for(void **state) {
    (void)state;
    expect("echo '<|endoftext|>' | $SMELT data encode $GOLDEN/gpt2.json special=true", 0, "0\n", "");
    expect("echo '<|endoftext|>' | $SMELT data encode $GOLDEN/gpt2.json | tr ' ' '\\n' | grep -cx 0", 1, "0\n", "");
    expect("echo | $SMELT data encode $GOLDEN/llama3.json template=true", 0, "0\n", "");
    expect("echo 0 | $SMELT data decode $GOLDEN/gpt2.json skip_special=true", 0, "\n", "");
}

static void shards_name_the_tokenizer_that_made_them(void **state) {
    (void)state;
    write_text("text", "some text\n");
    expect("$SMELT data pack text bytes >/dev/null && echo Aa | $SMELT data encode bytes", 0, "65 97\n", "");
    expect("echo 65 97 256 | $SMELT data decode bytes", 0, "Aa\n", "");
    expect("$SMELT data pack text words tokenizer=$GOLDEN/gpt2.json >/dev/null && echo Aa | $SMELT data encode words | $SMELT data decode "
           "words",
        0, "Aa\n", "");
    write_shard("foreign", 2, (const int32_t[]){1, 2}, (const int64_t[]){2}, 1);
    expect("echo 1 | $SMELT data decode foreign", ERROR_USAGE, "", "foreign records no tokenizer");
}

static void an_answer_comes_before_the_next_document(void **state) {
    (void)state;
    expect("mkfifo in out && { $SMELT data encode $GOLDEN/gpt2.json <in >out & exec 3>in 4<out; echo hello >&3; read -r first <&4; exec "
           "3>&-; cat <&4; wait; "
           "test -n \"$first\"; }",
        0, "", "");
}

static void a_long_document_takes_bounded_memory(void **state) {
    (void)state;
    enum { MIB = 40 };
    expect("yes 'a line of words' | tr '\\n' ' ' | head -c 50000000 | $SMELT data encode $GOLDEN/gpt2.json documents=all | wc -l", 0, "1\n",
        "");
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    if (SANITIZED) skip(); /* a sanitizer's shadow is memory of the process too */
    assert_true(usage.ru_maxrss < MIB << 10);
}

static void wrong_input_is_named_with_its_line(void **state) {
    (void)state;
    expect("printf '1\\n700\\n' | $SMELT data decode $GOLDEN/gpt2.json", ERROR_DATA, "!\n", "line 2 700 token");
    expect("printf '99999999999999999999' | $SMELT data decode $GOLDEN/gpt2.json", ERROR_DATA, "", "token");
    expect("echo 257 | $SMELT data decode $GOLDEN/none.json", ERROR_DATA, "", "open");
    expect("echo 1 -2 | $SMELT data decode $GOLDEN/gpt2.json", ERROR_DATA, "!", "line 1: '-'");
    expect("printf '\"a\"\\n{' | $SMELT data encode $GOLDEN/gpt2.json documents=json", ERROR_DATA, "65\n", "line 2: JSON");
    expect("echo '{\"b\":1}' | $SMELT data encode $GOLDEN/gpt2.json documents=json", ERROR_DATA, "", "field=");
}

int main(void) {
    char folder[2048];
    if (!getcwd(folder, sizeof folder)) return 1;
    snprintf(golden, sizeof golden, "%s/tests/golden/tokenizers", folder);
    setenv("GOLDEN", golden, 1);
    char *program = process_smelt();
    setenv("SMELT", program, 1);
    free(program);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_come_back_from_their_ids),
        cmocka_unit_test(special_tokens_are_text_unless_asked_for),
        IN_FOLDER(shards_name_the_tokenizer_that_made_them),
        IN_FOLDER(an_answer_comes_before_the_next_document),
        cmocka_unit_test(a_long_document_takes_bounded_memory),
        cmocka_unit_test(wrong_input_is_named_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
