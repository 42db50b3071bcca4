/* The commands of README.md, run in the order in which they stand, on a small model and text: a reader pastes them. `make` and
 * the live page are left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "support/train_run.h"

/* Makes what the README takes for granted: texts, small sizes in the example, a model with a chat template, conversations. */
static const char PREPARE[] =
    "set -e\n"
    "mkdir -p build my-texts\n"
    "cp text my-texts/a.txt\n"
    "ln -sf \"$SMELT\" build/smelt\n"
    "small() { sed -i -E 's/^  (width|ffn): [0-9]+/  \\1: 32/; s/^  (heads|kv_heads): [0-9]+/  \\1: 2/; "
    "s/^  length: [0-9]+/  length: 32/; s/^  tokens: [0-9]+/  tokens: 64/; s/^  sequences: [0-9]+/  sequences: 2/' \"$1\"; }\n";
static const char MODEL[] = "build/smelt data train-tokenizer my-texts/ tok.json vocabulary=300\n"
                            "build/smelt train llama.yaml run=runs/base data.train=my-texts/ data.tokenizer=tok.json steps=31\n"
                            "build/smelt convert runs/base MODEL\n"
                            "printf '{%% for m in messages %%}{{ m.role }}: {{ m.content }}\\n{%% endfor %%}' >MODEL/chat_template.jinja\n"
                            "for i in 1 2 3 4 5 6 7 8; do echo '{\"messages\": [{\"role\": \"user\", \"content\": \"the model\"}, "
                            "{\"role\": \"assistant\", \"content\": \"is lost\"}]}'; done >chats.jsonl\n";

/* Appends the block of commands that follows a heading. */
static char *with_block(char *script, const char *page, const char *heading) {
    const char *at = strstr(page, heading), *begin = at ? strstr(at, "```\n") : NULL, *end = begin ? strstr(begin + 4, "\n```") : NULL;
    if (!end) fail_msg("README.md has no commands after %s", heading);
    SCOPED_FREE char *before = script, *block = memory_format("%.*s\n", (int)(end - begin - 4), begin + 4);
    char *all = memory_copy_string(before);
    for (char *rest = block, *line; (line = strtok_r(rest, "\n", &rest));) {
        SCOPED_FREE char *last = all;
        bool skipped = !strcmp(line, "make") || starts_with(line, "build/smelt watch"), chats = starts_with(line, "build/smelt chat ");
        const char *yaml = strstr(line, "> ");
        all = memory_format("%s%s%s\n", last, skipped ? ":" : chats ? "echo the model | " : "", skipped ? "" : line);
        if (!yaml) continue;
        SCOPED_FREE char *shown = all;
        all = memory_format("%ssmall %.*s\n", shown, (int)strcspn(yaml + 2, " "), yaml + 2);
    }
    return all;
}

static char *page; /* README.md */

static void its_commands_work_in_their_order(void **state) {
    (void)state;
    char *script = with_block(memory_copy_string(PREPARE), page, "## Train on your own text\n");
    SCOPED_FREE char *first = script, *made = memory_format("%s%s", script, MODEL);
    script = with_block(memory_copy_string(made), page, "## Fine-tune in five lines\n");
    SCOPED_FREE char *whole = script;
    Process process = process_start((char *[]){"/bin/sh", "-c", whole, NULL});
    ProcessResult result = process_finish(&process);
    if (result.code) fail_msg("exit code %d:\n%s\n%s\n%s", result.code, whole, result.output, result.errors);
    process_free(&result);
}

int main(void) {
    page = read_text("README.md");
    train_main();
    const struct CMUnitTest tests[] = {TRAIN_TEST(its_commands_work_in_their_order)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(page);
    return failed;
}
