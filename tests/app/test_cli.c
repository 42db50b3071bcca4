/* What all commands have in common: standard descriptors that are closed, output that is lost, help, and arguments
 * that would destroy or do nothing. */
#include "support/data_files.h"
#include "support/mentions.h"
#include "support/train_run.h"

#include "app/command.h"
#include "base/options_internal.h"
#include "base/scope.h"
#include "config/config.h"
#include "base/version.h"
#include "base/wrap.h"

/* Runs a command of the shell; $SMELT is the program. */
static ProcessResult shell(const char *command) {
    char *arguments[] = {"/bin/sh", "-c", (char *)command, NULL};
    Process process = process_start(arguments);
    return process_finish(&process);
}

/* The error may be part of a line; "" demands none. */
static void expect(const char *command, int code, const char *told) {
    ProcessResult result = shell(command);
    expect_code(&result, code, command);
    if (!mentions(result.errors, told)) fail_msg("%s: no '%s' in: %s", command, told, result.errors);
    process_free(&result);
}

static void messages_never_go_into_files_when_descriptors_are_closed(void **state) {
    (void)state;
    expect("$SMELT train " TINY " stop_at=3 run=r <&- >&- 2>&-", 0, "");
    char *records = (char *)read_bytes("r/metrics.jsonl", &(size_t){0});
    assert_true(process_lines(records, "{\"kind\"") >= 4);
    assert_int_equal(process_lines(records, "{\"kind\""), process_lines(records, ""));
    free(records);
}

static void lost_output_is_an_error_of_every_command_but_a_training(void **state) {
    (void)state;
    static const char *const commands[] = {"--help", "help train", "data show s", "doctor --help", "train " TINY " run=r plan=true"};
    write_shard("s", 2, (const int32_t[]){1, 2}, (const int64_t[]){2}, 1);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char *command = memory_format("$SMELT %s >/dev/full", commands[i]);
        expect(command, ERROR_INTERNAL, "error: not all output could be written to stdout: ");
        free(command);
    }
    expect("$SMELT data show s >&-", ERROR_INTERNAL, "stdout: Bad file descriptor\n");
    expect("$SMELT train " TINY " stop_at=3 run=r >/dev/full", 0, "");
}

static void the_glossary_of_names_is_printed_on_request_alone(void **state) {
    (void)state;
    static const char *const commands[] = {"doctor folder=", "doctor folder= names=true"};
    for (int i = 0; i < 2; i++) {
        ProcessResult result = smelt(commands[i]);
        assert_int_equal(strstr(result.output, "ROCR_VISIBLE_DEVICES hides them") != NULL, i);
        process_free(&result);
    }
}

static void help_stands_before_or_after(void **state) {
    (void)state;
    static const char *const others[] = {"help train", "train c.yaml --help", "train c.yaml steps=3 -h"};
    ProcessResult help = smelt("train --help");
    assert_non_null(strstr(help.output, "Usage: smelt train"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ProcessResult other = smelt(others[i]);
        expect_code(&other, 0, others[i]);
        assert_string_equal(other.output, help.output);
        process_free(&other);
    }
    process_free(&help);
    expect("$SMELT help nonsense", ERROR_USAGE, "unknown command 'nonsense'");
}

static void a_vocabulary_does_not_replace_the_text_that_it_is_learned_from(void **state) {
    (void)state;
    expect("mkdir texts && cp text texts/a && cp text before && ln -s texts link", 0, "");
    expect("$SMELT data train-tokenizer text text vocabulary=300", ERROR_USAGE, "text is both input and output");
    expect("$SMELT data train-tokenizer texts texts/a vocabulary=300", ERROR_USAGE, "texts/a");
    expect("$SMELT data train-tokenizer link texts/a vocabulary=300", ERROR_USAGE, "texts/a");
    expect("cmp before text && cmp before texts/a", 0, "");
    expect("$SMELT data train-tokenizer texts texts.json vocabulary=300", 0, "");
    expect("$SMELT data train-tokenizer texts texts.json vocabulary=300", ERROR_USAGE, "texts.json");
    expect("$SMELT data train-tokenizer texts texts.json vocabulary=300 overwrite=true", 0, "");
}

static void prompts_with_an_equals_sign_go_after_two_dashes(void **state) {
    (void)state;
    expect("$SMELT generate none a=b", ERROR_USAGE, "put --");
    expect("$SMELT train " TINY " stop_at=1 run=r", 0, "");
    ProcessResult result = smelt("generate r tokens=0 -- a=b");
    expect_code(&result, 0, "generate");
    assert_string_equal(result.output, "a=b\n");
    expect("test \"$(printf 'a=b\\nc\\n' | $SMELT generate r - tokens=0)\" = \"$(printf 'a=b\\nc')\"", 0, "");
    expect(
        "touch x.safetensors; $SMELT generate r x.safetensors tokens=0", ERROR_USAGE, "x.safetensors is a file of encodings, r makes text");
    expect("printf 'a\\0b' | $SMELT generate r - tokens=0", ERROR_DATA, "zero byte");
    expect("$SMELT generate r - tokens=0 </dev/null", ERROR_USAGE, "prompt");
    process_free(&result);
}

/* A name is not to be taken for a setting, nor to reach the terminal as a control sequence. */
static void strange_names_of_run_folders_are_named(void **state) {
    (void)state;
    expect("$SMELT train " TINY " stop_at=1 run=q=1", 0, "");
    static const char *const commands[] = {"train q=1 steps=2", "show q=1", "report q=1", "eval q=1", "generate q=1 hi"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        SCOPED_FREE char *command = memory_format("$SMELT %s", commands[i]);
        expect(command, ERROR_USAGE, "'q=1'");
    }
    expect("mv q=1 \"$(printf 'a\033b')\" && $SMELT report \"$(printf 'a\033b')\" >out && grep -q 'wrote a b/report.html' out", 0, "");
}

/* The third number that a folder's model prints becomes its eos_token_id. */
static void numbers_of_tokens_end_where_the_folder_says(void **state) {
    (void)state;
    int tokens[4];
    expect("$SMELT train " TINY " stop_at=1 run=r && $SMELT convert r f", 0, "");
    ProcessResult before = smelt("generate f 65 text=false tokens=3 seed=5");
    expect_code(&before, 0, "generate");
    assert_int_equal(sscanf(before.output, "%d %d %d %d", &tokens[0], &tokens[1], &tokens[2], &tokens[3]), 4);
    char *config = memory_format("{\"eos_token_id\": [70000, %d]}", tokens[3]);
    write_text("f/generation_config.json", config);
    ProcessResult after = smelt("generate f 65 text=false tokens=3 seed=5");
    int printed = sscanf(after.output, "%d %d %d %d", &tokens[0], &tokens[1], &tokens[2], &tokens[3]);
    assert_int_equal(printed, tokens[3] == tokens[1] ? 1 : tokens[3] == tokens[2] ? 2 : 3);
    free(config);
    process_free(&after);
    process_free(&before);
}

static void losses_are_refused_where_nothing_is_compared_with_them(void **state) {
    (void)state;
    expect("$SMELT train " TINY " stop_at=1 run=r", 0, "");
    expect("$SMELT eval r text losses=1,2", ERROR_USAGE, "losses=");
}

static void a_launch_without_dashes_before_its_command_says_so(void **state) {
    (void)state;
    expect("$SMELT launch -n 2 train c.yaml", ERROR_USAGE, "'train' key=value \"--\"");
}

static void ranks_of_a_launch_are_given_once(void **state) {
    (void)state;
    static const char both[] = "-n N is short for ranks=N, both";
    expect("$SMELT launch -n 2 ranks=1 -- train c.yaml", ERROR_USAGE, both);
    expect("$SMELT launch --ranks 1 -n 2 -- train c.yaml", ERROR_USAGE, both);
}

static void a_wrong_word_after_the_dashes_of_launch_is_named_once(void **state) {
    (void)state;
    ProcessResult result = smelt("launch -n 2 -- trian c.yaml");
    expect_code(&result, ERROR_USAGE, "launch");
    assert_string_equal(result.errors, "error: 'trian' after \"--\" is not a command of smelt: smelt --help lists the commands\n");
    process_free(&result);
}

/* Ranks of such a command would each do all of it, into the same files. */
static void commands_of_one_process_are_not_launched(void **state) {
    (void)state;
    static const char *const alone[] = {"convert t out", "data pack text dd", "data train-tokenizer text v", "data show text", "chat t",
        "show t", "report t", "bench gemm", "doctor", "launch -n 2 -- train c.yaml"};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        SCOPED_FREE char *words = memory_format("launch -n 3 -- %s", alone[i]);
        ProcessResult result = smelt(words);
        expect_code(&result, ERROR_USAGE, words);
        assert_mentions(result.errors, "process");
        assert_ptr_equal(strchr(result.errors, '\n') + 1, result.errors + strlen(result.errors));
        process_free(&result);
    }
    expect("test ! -e out -a ! -e dd", 0, "");
    expect("$SMELT launch -- data", ERROR_USAGE, "'data' \"--\" group of commands: smelt data --help");
    expect("$SMELT launch -- bench trian", ERROR_USAGE, "'bench \"--\"");
}

/* When a rank is lost it would be too late. */
static void shrinking_is_refused_at_the_start_where_it_cannot_be(void **state) {
    (void)state;
    static const char three[] = "shrink=true layout.dp=3 layout.dp=0 layout=auto";
    write_text("c.yaml", "layout: {dp: 3}\n");
    expect("$SMELT launch -n 3 shrink=true -- train " TINY " run=s layout.dp=3", ERROR_USAGE, three);
    expect("$SMELT launch -n 3 shrink=true -- train c.yaml " TINY " run=s", ERROR_USAGE, three);
    expect("$SMELT launch -n 2 shrink=true -- train " TINY " run=s layout.shard=2", ERROR_USAGE, "layout.shard=2 layout.shard=0 or");
    expect("$SMELT launch -n 2 shrink=true -- eval r", ERROR_USAGE, "shrink=true training, smelt eval");
    expect("NNODES=2 NODE_RANK=0 MASTER_ADDR=127.0.0.1 $SMELT launch shrink=true -- train " TINY " run=s", ERROR_USAGE, "shrink=true");
    expect("test ! -e s", 0, "");
    expect("$SMELT launch -n 2 shrink=true -- train c.yaml " TINY " run=s stop_at=1 layout.dp=0", 0, "");
}

static void a_wrong_setting_of_a_launched_training_is_printed_once(void **state) {
    (void)state;
    ProcessResult result = smelt("launch -n 3 -- train stesp=3");
    expect_code(&result, ERROR_USAGE, "launch");
    const char *told = strstr(result.errors, "did you mean 'steps'?\n");
    assert_non_null(told);
    assert_null(strstr(told + 1, "did you mean"));
    process_free(&result);
}

/* Every command, by the lists of commands: none is forgotten. One word may be wider: a default that is a list of files. */
static void every_help_fits_into_80_columns(void **state) {
    (void)state;
    int commands = 0;
    for (int i = 0; command_smelt.member(i); i++) {
        const Command *group = command_smelt.member(i);
        for (int j = 0; group->member ? group->member(j) != NULL : j == 0; j++) {
            SCOPED_FREE char *arguments = memory_format("%s --help", group->member ? group->member(j)->name : group->name);
            ProcessResult help = smelt(arguments);
            expect_code(&help, 0, arguments);
            for (char *line = strtok(help.output, "\n"); line; line = strtok(NULL, "\n"))
                if (strlen(line) > WRAP_WIDTH && strchr(line + strspn(line, " "), ' '))
                    fail_msg("%s: %zu columns: %s", arguments, strlen(line), line);
            process_free(&help);
            commands++;
        }
    }
    assert_in_range(commands, 20, 100);
}

static void the_version_names_what_was_built(void **state) {
    (void)state;
    ProcessResult version = smelt("--version");
    expect_code(&version, 0, "--version");
    assert_int_equal(strncmp(version.output, "smelt " SMELT_VERSION, strlen("smelt " SMELT_VERSION)), 0);
    assert_non_null(strstr(version.output, "\nGPU targets built in: gfx90a gfx942"));
    write_text("version", version.output);
    expect("$SMELT -V | cmp - version && $SMELT version | cmp - version", 0, "");
    process_free(&version);
}

static void the_manual_page_explains_every_command_and_setting(void **state) {
    (void)state;
    expect(
        "export LC_ALL=C; $SMELT manual >smelt.1 && ! man --warnings -l smelt.1 2>&1 >page | grep . && grep -q 'peak learning rate' page",
        0, "");
    expect("grep -q '^.BI optimizer.lr= \"1e' smelt.1 && grep -q '^.SS \"smelt data pack INPUT... OUTPUT' smelt.1", 0, "");
    expect("$SMELT manual elvish", ERROR_USAGE, "'elvish' is not a form of the manual");
}

/* What bash would propose at the end of a line, as bash calls a completion: "=" is a word of its own. */
static void bash_completes_commands_keys_values_and_files(void **state) {
    (void)state;
    static const char script[] = "source ./smelt.bash\n"
                                 "line=$1 text=${1//=/ = }\n"
                                 "COMP_LINE=$line COMP_POINT=${#line} COMP_WORDS=($text)\n"
                                 "[[ $line == *[\\ =] ]] && COMP_WORDS+=('')\n"
                                 "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                                 "_smelt; echo \"${COMPREPLY[*]}\"\n";
    static const char *const lines[][2] = {{"smelt tr", "train"}, {"smelt data p", "pack"}, {"smelt data pack sepa", "separator="},
        {"smelt train optimizer.weight", "optimizer.weight_decay="}, {"smelt train device=", "auto cpu hip cuda"},
        {"smelt train device=c", "cpu cuda"}, {"smelt train on_nan=s", "stop skip"}, {"smelt train data.train=te", "text"},
        {"smelt launch -n 2 -- train device=h", "hip"}, {"smelt bench gemm repeats", "repeats="}, {"smelt generate tempe", "temperature="}};
    expect("$SMELT manual bash >smelt.bash", 0, "");
    write_text("try.bash", script);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        SCOPED_FREE char *wanted = memory_format("%s\n", lines[i][1]);
        char *arguments[] = {"/bin/bash", "try.bash", (char *)lines[i][0], NULL};
        Process process = process_start(arguments);
        ProcessResult result = process_finish(&process);
        if (strcmp(result.output, wanted)) fail_msg("%s: %s in place of %s", lines[i][0], result.output, wanted);
        process_free(&result);
    }
}

/* All are planned, and one family and the finetuning, which starts from what that trained, take steps. */
static void every_example_trains_as_it_is_printed(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "zaya", "mpt", "gpt2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SCOPED_FREE char *command =
            memory_format("$SMELT train --example %s >%s.yaml && $SMELT train %s.yaml data.train=text device=cpu plan=true", names[i],
                names[i], names[i]);
        expect(command, 0, "");
    }
    expect("$SMELT train llama.yaml data.train=text device=cpu run=r stop_at=2", 0, "");
    expect("$SMELT train --example finetune >f.yaml && $SMELT train f.yaml init=r data.train=text device=cpu run=s stop_at=2", 0, "");
    expect("$SMELT train --example qwen3-30b-a3b >q.yaml && $SMELT size q.yaml | grep '^30.5B parameters, 3.35B active'", 0, "");
    expect("$SMELT train --example olmo3-7b >o3.yaml && $SMELT size o3.yaml | grep '^7.30B parameters'", 0, "");
    expect("$SMELT train --example deepseek-v2-lite >d2.yaml && $SMELT size d2.yaml | grep '^15.7B parameters, 2.66B active'", 0, "");
    expect("$SMELT train --example deepseek-v3 >d3.yaml && $SMELT size d3.yaml | grep '^671B parameters, 37.6B active'", 0, "");
    expect("$SMELT train --example gemma2-2b >g2.yaml && $SMELT size g2.yaml | grep '^2.61B parameters'", 0, "");
    expect("$SMELT train --example gemma3-4b >g3.yaml && $SMELT size g3.yaml | grep '^3.88B parameters'", 0, "");
    expect("$SMELT train --example smollm3-3b >s3.yaml && $SMELT size s3.yaml | grep '^3.08B parameters'", 0, "");
    expect("$SMELT train --example phi-4 >p4.yaml && $SMELT size p4.yaml | grep '^14.7B parameters'", 0, "");
    expect("$SMELT train --example granite3-2b >gr.yaml && $SMELT size gr.yaml | grep '^2.53B parameters'", 0, "");
    expect("$SMELT train --example granite3-1b-a400m >gm.yaml && $SMELT size gm.yaml | grep '^1.33B parameters, 429M active'", 0, "");
    expect("$SMELT train --example glm4.5-air >ga.yaml && $SMELT size ga.yaml | grep '^107B parameters, 13.4B active'", 0, "");
    expect("$SMELT train --example glm4.7-flash >gf.yaml && $SMELT size gf.yaml | grep '^29.9B parameters, 3.90B active'", 0, "");
    expect("$SMELT train --example ministral3-8b >m3.yaml && $SMELT size m3.yaml | grep '^8.49B parameters'", 0, "");
    expect("$SMELT train --example qwen3.5-35b-a3b >q5.yaml && $SMELT size q5.yaml | grep '^34.7B parameters, 3.45B active'", 0, "");
    expect("$SMELT train --example qwen3-next-80b-a3b >qn.yaml && $SMELT size qn.yaml | grep '^79.7B parameters, 3.87B active'", 0, "");
    expect("$SMELT train --example minimax-m2 >mm.yaml && $SMELT size mm.yaml | grep '^229B parameters, 11.0B active'", 0, "");
    expect("$SMELT train --example olmoe-1b-7b >o.yaml && $SMELT size o.yaml | grep '^6.92B parameters, 1.28B active'", 0, "");
    expect("$SMELT train --example gpt-oss-20b >g.yaml && $SMELT size g.yaml | grep '^20.9B parameters, 4.19B active'", 0, "");
    expect("$SMELT train --example lora-flux1-dev >l.yaml && $SMELT size l.yaml init=none | grep '^11.9B parameters'", 0, "");
    expect("$SMELT train --example encode-images.py >encode.py && /usr/bin/python3 -m py_compile encode.py", 0, "");
    expect("$SMELT train --example", ERROR_USAGE, "'' gpt2");
}

/* In the command's own table: the names of other programs are suggested only where their row is. */
static void names_of_other_programs_are_answered(void **state) {
    (void)state;
    static const char *const names[][2] = {{"train eval.batches=1", "eval.sequences"}, {"train eval_iters=1", "eval.sequences"},
        {"train learning_rate=1", "optimizer.lr"}, {"train hidden_size=1", "model.width"}, {"train n_layers=1", "model.layers"},
        {"train batch_size=1", "batch.tokens"}, {"train max_steps=1", "steps"}, {"train per_device_train_batch_size=1", "batch.sequences"},
        {"train vocab_size=1", "model.vocabulary"}, {"train max_seq_length=1", "data.length"},
        {"train gradient_checkpointing=1", "recompute"}, {"generate r x temp=1", "temperature"},
        {"generate r x max_new_tokens=1", "tokens"}, {"launch nproc_per_node=2 -- train", "ranks"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SCOPED_FREE char *command = memory_format("$SMELT %s", names[i][0]), *told = memory_format("did you mean '%s' (", names[i][1]);
        expect(command, ERROR_USAGE, told);
    }
}

static bool has_row(const OptionTable *table, const char *name) { return options_find(table, name, strlen(name)); }

/* Whether a command in the group has a setting of this name, and none that has it calls a setting `other`. */
static bool has_setting(const Command *group, const char *name, const char *other) {
    bool found = false;
    for (int i = 0; group->member(i); i++) {
        const Command *command = group->member(i);
        bool has = command->member ? has_setting(command, name, other) : has_row(command->table, name);
        if (has && !command->member && has_row(command->table, other)) fail_msg("smelt %s has its own %s", command->name, other);
        found = found || has;
    }
    return found;
}

static void names_of_other_programs_mean_settings_that_there_are(void **state) {
    (void)state;
    int count = 0;
    for (const OtherName *row = options_other_names; row->other; row++, count++)
        if (!has_setting(&command_smelt, row->ours, row->other))
            fail_msg("%s is said to mean %s, which no command has", row->other, row->ours);
    assert_true(count > 100);
}

/* Configurations of axolotl, torchtitan, Megatron, llm-foundry and transformers: each name gets a setting or a reason. */
static void names_in_configurations_of_other_programs_are_answered(void **state) {
    (void)state;
    static const char *const names[] = {"num_epochs", "num_train_epochs", "val_set_size", "tensor_parallel_degree",
        "data_parallel_shard_degree", "compile", "early_stopping", "early_stopping_patience", "gradient_accumulation",
        "gradient_accumulation_steps", "resume", "resume_from_checkpoint", "wandb_project", "micro_batch_size", "sequence_len",
        "sample_packing", "output_dir", "datasets", "base_model", "flash_attention", "bf16", "deepspeed", "fsdp", "warmup_steps",
        "warmup_ratio", "lr_scheduler", "weight_decay", "max_grad_norm", "save_steps", "eval_steps", "logging_steps"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SCOPED_FREE char *words = memory_format("train %s=1", names[i]);
        ProcessResult result = smelt(words);
        expect_code(&result, ERROR_USAGE, words);
        if (mentions(result.errors, "--help")) fail_msg("%s: %s", names[i], result.errors);
        process_free(&result);
    }
    write_text("c.yaml", "datasets:\n  - path: text\n");
    expect("$SMELT train c.yaml", ERROR_USAGE, "'datasets' c.yaml:2 'data.train'");
}

static void a_mistyped_command_is_answered_with_the_nearest_one(void **state) {
    (void)state;
    ProcessResult result = smelt("trian c.yaml");
    expect_code(&result, ERROR_USAGE, "trian");
    assert_string_equal(result.errors, "error: unknown command 'trian'; did you mean 'smelt train'?\n");
    expect("$SMELT finetune", ERROR_USAGE, "error: unknown command 'finetune'; did you mean 'smelt train init=MODEL'?\n");
    expect("$SMELT merge", ERROR_USAGE, "error: unknown command 'merge'; did you mean 'smelt convert'?\n");
    process_free(&result);
    expect("$SMELT data pakc text s", ERROR_USAGE, "error: unknown command 'data pakc'; did you mean 'smelt data pack'?\n");
    expect("$SMELT bench gem", ERROR_USAGE, "error: unknown command 'bench gem'; did you mean 'smelt bench gemm'?\n");
    expect("$SMELT nonsense", ERROR_USAGE, "error: unknown command 'nonsense'\nsmelt trains large language models");
}

static void names_of_other_programs_lead_to_commands(void **state) {
    (void)state;
    for (const CommandName *name = command_smelt.other_names; name->theirs; name++) {
        char *first = memory_format("%.*s", (int)strcspn(name->ours, " "), name->ours);
        if (command_member(&command_smelt, name->theirs)) fail_msg("%s is a command", name->theirs);
        if (!command_member(&command_smelt, first)) fail_msg("%s leads to %s", name->theirs, first);
        free(first);
    }
}

/* Options of a command, settings of a configuration, and its file. */
static void independent_mistakes_are_told_together(void **state) {
    (void)state;
    write_text("c.yaml", "steps: -3\nmodel:\n  familly: llama\n  width: x\n");
    expect("$SMELT train c.yaml", ERROR_USAGE, "steps c.yaml:1 '-3' also: 'model.familly' c.yaml:3 'model.family' also: model.width 'x'");
    expect("$SMELT train model.familly=llama steps=-5", ERROR_USAGE, "'model.familly' 'model.family' also: steps '-5'");
    expect("$SMELT generate r hi tokns=5 top_p=7", ERROR_USAGE, "'tokns' 'tokens' also: top_p '7'");
}

static void a_forecast_of_what_does_not_fit_begins_with_that(void **state) {
    (void)state;
    write_text("c.yaml", "model: {family: llama, width: 8192, layers: 80, heads: 64}\n");
    ProcessResult result = smelt("forecast c.yaml gpu=h100 gpus=1");
    expect_code(&result, ERROR_MEMORY, "forecast");
    const char start[] = "It does not fit: a rank needs ";
    assert_memory_equal(result.output, start, sizeof start - 1);
    process_free(&result);
}

static void what_only_a_simulation_computes_is_refused_without_one(void **state) {
    (void)state;
    write_text("c.yaml", "model: {family: llama, width: 64, layers: 2, heads: 4}\n");
    write_text("slow.yaml", "slow: {node: 1, factor: 1.1}\n");
    write_text("lost.yaml", "lost: {rank: 9}\n");
    expect("$SMELT forecast c.yaml gpu=mi300x gpus=16 topology=slow.yaml", ERROR_USAGE, "slow.yaml slow.node simulate=true");
    expect("$SMELT forecast c.yaml gpu=mi300x gpus=16 topology=lost.yaml", ERROR_USAGE, "lost.yaml lost.rank simulate=true");
    expect("$SMELT forecast c.yaml gpu=mi300x gpus=16 bench.trace=t", ERROR_USAGE, "bench.trace=t model.experts");
    expect("$SMELT forecast c.yaml gpu=mi300x gpus=16 simulate=true bench.trace=t model.experts=4", ERROR_USAGE,
        "bench.trace=t simulate=true");
}

static void settings_are_read_in_every_spelling_by_train_and_launch(void **state) {
    (void)state;
    expect("$SMELT train " TINY " run=a --stop_at 2 --plan=false && $SMELT show a", 0, "");
    expect("$SMELT train " TINY " run=b --plan && test ! -e b", 0, "");
    expect("$SMELT launch --ranks 2 --self_test=false -- train " TINY " run=c --stop_at=2 && $SMELT show c", 0, "");
    expect("$SMELT train --steps", ERROR_USAGE, "--steps has no value: write --steps VALUE or steps=VALUE");
    expect("$SMELT train optimizer=adamw", ERROR_USAGE, "'optimizer.name'");
    expect("$SMELT train model=folder", ERROR_USAGE, "did you mean 'init'");
    expect("$SMELT train dropout=0.1", ERROR_USAGE, "'dropout' 'dropout=0.1'");
    expect("$SMELT train --learning-rate 1", ERROR_USAGE, "'optimizer.lr'");
    expect("$SMELT train text", ERROR_USAGE, "data.train=text");
    expect("$SMELT train steps=1 c.yaml", ERROR_USAGE, "'c.yaml' key=value");
}

/* A rank's number stands before its lines, which are narrower for it. */
static void a_launched_training_fits_the_terminal_of_the_launcher(void **state) {
    (void)state;
    expect("SMELT_STDOUT_COLUMNS=70 SMELT_STDERR_COLUMNS=70 $SMELT launch -n 2 output=all -- train " TINY
           " run=a stop_at=2 log.every=1 >printed 2>&1 && grep -q '^.0.  *2/40 ' printed && ! grep -E '.{71}' printed",
        0, "");
    expect("SMELT_STDOUT_COLUMNS=70 $SMELT launch stop_on=nothing -- train " TINY " run=b stop_at=2 | grep -q TFLOP/s", 0, "");
}

static void a_start_that_ends_at_stop_at_says_so(void **state) {
    (void)state;
    expect("$SMELT train " TINY
           " model.layers=1 run=a stop_at=2 >printed && grep -q '^stopped  by stop_at=2, with 38 of 40 steps left' printed && "
           "grep -q '^model .* 1 layer of width' printed && grep -Eq '^loss     [0-9.]+ at step 2; [0-9.]+ smoothed over 2 steps' printed",
        0, "");
    expect("$SMELT train a steps=5 >printed && ! grep ^stopped printed && grep -q 'smoothed over 3 steps$' printed", 0, "");
}

/* The sum of losses of a text, and its targets. */
static double loss_sum(const char *words, double *tokens) {
    SCOPED_FREE char *all = memory_format("eval a %s precision=fp64 threads=1 json=true", words);
    ProcessResult result = smelt(all);
    if (result.code) fail_msg("%s: %s", all, result.errors);
    json_auto_t *json = json_loads(result.output, 0, NULL);
    *tokens = json_number_value(json_object_get(json, "tokens"));
    double sum = *tokens * json_number_value(json_object_get(json, "loss"));
    process_free(&result);
    return sum;
}

/* The second sequence adds the last 12 of its 32 targets, with what precedes them in the sequence. */
static void overlapping_sequences_count_each_token_once(void **state) {
    (void)state;
    double all, again, one, two, whole, start;
    train_good("run=a steps=6 model.context=64 eval.every=0 checkpoint.every=0");
    expect("head -c 1000 text >long && tail -c +13 long >later", 0, "");
    loss_sum("long length=32 batch=3", &all);
    double sum = loss_sum("long length=32 batch=3 stride=12", &again);
    assert_true(all == again && sum > 0);
    assert_float_equal(loss_sum("long length=32 stride=32", &again), loss_sum("long length=32", &all), 1e-9);
    double added = loss_sum("long length=32 stride=12 sequences=2", &two) - loss_sum("long length=32 sequences=1", &one);
    assert_true(two == 44 && one == 32);
    double expected = loss_sum("later length=32 sequences=1", &whole) - loss_sum("later length=20 sequences=1", &start);
    assert_true(whole == 32 && start == 20);
    assert_float_equal(added, expected, 1e-9);
    smelt_says(ERROR_USAGE, "stride=33 32", "eval a long length=32 stride=33");
}

static void a_run_is_evaluated_on_its_own_validation_data(void **state) {
    (void)state;
    static const char same[] = "grep -o 'validation at step 5: loss [0-9.]*' trained | grep -o '[0-9.]*$' >in-training && "
                               "grep -qF \"$(cut -c 1-6 in-training)\" evaluated";
    SCOPED_FREE char *split = memory_format(
        "$SMELT train " TINY
        " precision=fp32 run=a stop_at=5 eval.every=5 >trained && mv a b && $SMELT eval b precision=fp32 device=cpu >evaluated && %s",
        same);
    expect(split, 0, "b/data/text-valid");
    expect("$SMELT eval b separator=%", ERROR_USAGE, "separator=%: it divides text, and these are tokens: remove it");
    expect("$SMELT convert b b.gguf shard_bytes=1M", ERROR_USAGE, "shard_bytes=1000000 OUT");
    expect("$SMELT eval b@3", ERROR_CHECKPOINT, "error b@3 checkpoint 3");
    expect("$SMELT eval b@3 2>told || ! grep 'on the validation data' told", 0, "");
    expect("$SMELT report b@best", ERROR_USAGE, "b@best is a checkpoint, run: use b\n");
    expect("$SMELT watch b/checkpoints/step-00000005", ERROR_USAGE, "is a checkpoint, run: use b\n");
    expect("head -c 5000 text >other && $SMELT train " TINY " run=c stop_at=5 data.valid=other && rm other && $SMELT eval c", 0,
        "c/data/valid-");
    expect("$SMELT train " TINY " run=d stop_at=5 data.valid_fraction=0 && $SMELT eval d", ERROR_USAGE, "DATA");
}

/* As the README says: a text, and nothing else. The run folder is the default's. */
static void a_text_alone_trains(void **state) {
    (void)state;
    expect("$SMELT train data.train=text stop_at=1 device=cpu && test -e runs/first/metrics.jsonl", 0, "");
}

static void standard_input_is_packed(void **state) {
    (void)state;
    expect("mkdir parts && cd parts && split -n 20 ../text && $SMELT data pack x* ../of_parts >../told && grep -q ': 20 files' ../told", 0,
        "");
    expect("$SMELT data pack text one && cat text | $SMELT data pack - two && cmp one.bin two.bin && cmp one.idx two.idx", 0, "");
    expect("gzip -c text | $SMELT data pack - packed && cmp one.bin packed.bin", 0, "");
    expect("tar c text | $SMELT data pack - three", ERROR_DATA, "error: standard input is a tar archive, not text: unpack it first");
    expect("$SMELT data pack - three </dev/null", ERROR_DATA, "text");
    expect("test ! -e three.bin", 0, "");
}

static void training_on_text_that_is_not_utf8_says_so(void **state) {
    (void)state;
    expect("LC_ALL=C tr e '\\351' <text >latin && $SMELT train " TINY " data.train=latin stop_at=1 run=latin1", 0,
        "2 UTF-8 U+FFFD invalid=replace 1");
}

static void a_tokenizer_of_sentencepiece_is_no_text(void **state) {
    (void)state;
    write_bytes("tokenizer.model", "\n\x0e\n\5<unk>\x15\0\0\0\0", 14);
    expect("$SMELT data pack text out tokenizer=tokenizer.model", ERROR_DATA, "tokenizer.model");
    expect("$SMELT data pack tokenizer.model out", ERROR_DATA, "tokenizer.model");
}

static void what_a_folder_holds_besides_text_is_counted(void **state) {
    (void)state;
    expect("mkdir -p f/.git && cp text f/a && cp text f/.git/b && cp text f/.c && tar cf f/b.tar text && tar cf f/c.tar text", 0, "");
    expect("$SMELT data pack f out", 0, "2 f/b.tar");
    expect("$SMELT data pack f another", 0, "2 f/.c");
}

static void showing_a_folder_names_a_shard_in_it(void **state) {
    (void)state;
    expect("$SMELT train " TINY " stop_at=1 run=r", 0, "");
    expect("$SMELT data show r", ERROR_USAGE, "r/data");
    expect("$SMELT data show r/data", ERROR_DATA, "r/data/text-train r/data/text-valid");
    expect("mkdir empty && $SMELT data show empty", ERROR_USAGE, "empty is a folder without token shards");
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(messages_never_go_into_files_when_descriptors_are_closed),
        TRAIN_TEST(lost_output_is_an_error_of_every_command_but_a_training),
        TRAIN_TEST(the_glossary_of_names_is_printed_on_request_alone),
        TRAIN_TEST(help_stands_before_or_after),
        TRAIN_TEST(a_vocabulary_does_not_replace_the_text_that_it_is_learned_from),
        TRAIN_TEST(prompts_with_an_equals_sign_go_after_two_dashes),
        TRAIN_TEST(numbers_of_tokens_end_where_the_folder_says),
        TRAIN_TEST(a_launch_without_dashes_before_its_command_says_so),
        TRAIN_TEST(ranks_of_a_launch_are_given_once),
        TRAIN_TEST(a_wrong_word_after_the_dashes_of_launch_is_named_once),
        TRAIN_TEST(commands_of_one_process_are_not_launched),
        TRAIN_TEST(shrinking_is_refused_at_the_start_where_it_cannot_be),
        TRAIN_TEST(a_wrong_setting_of_a_launched_training_is_printed_once),
        TRAIN_TEST(every_help_fits_into_80_columns),
        TRAIN_TEST(the_version_names_what_was_built),
        TRAIN_TEST(the_manual_page_explains_every_command_and_setting),
        TRAIN_TEST(bash_completes_commands_keys_values_and_files),
        TRAIN_TEST(every_example_trains_as_it_is_printed),
        TRAIN_TEST(names_of_other_programs_are_answered),
        TRAIN_TEST(names_of_other_programs_mean_settings_that_there_are),
        TRAIN_TEST(strange_names_of_run_folders_are_named),
        TRAIN_TEST(names_in_configurations_of_other_programs_are_answered),
        cmocka_unit_test(names_of_other_programs_lead_to_commands),
        TRAIN_TEST(independent_mistakes_are_told_together),
        TRAIN_TEST(a_forecast_of_what_does_not_fit_begins_with_that),
        TRAIN_TEST(what_only_a_simulation_computes_is_refused_without_one),
        TRAIN_TEST(a_mistyped_command_is_answered_with_the_nearest_one),
        TRAIN_TEST(settings_are_read_in_every_spelling_by_train_and_launch),
        TRAIN_TEST(a_launched_training_fits_the_terminal_of_the_launcher),
        TRAIN_TEST(overlapping_sequences_count_each_token_once),
        TRAIN_TEST(a_run_is_evaluated_on_its_own_validation_data),
        TRAIN_TEST(a_start_that_ends_at_stop_at_says_so),
        TRAIN_TEST(a_text_alone_trains),
        TRAIN_TEST(standard_input_is_packed),
        TRAIN_TEST(training_on_text_that_is_not_utf8_says_so),
        TRAIN_TEST(a_tokenizer_of_sentencepiece_is_no_text),
        TRAIN_TEST(what_a_folder_holds_besides_text_is_counted),
        TRAIN_TEST(showing_a_folder_names_a_shard_in_it),
        TRAIN_TEST(losses_are_refused_where_nothing_is_compared_with_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
