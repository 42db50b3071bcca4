/* The program itself: its commands, in the order of use. */
#include "app/command.h"

static const Command *member(int index) {
    static const Command *const commands[] = {&command_train, &command_generate, &command_chat, &command_serve, &command_eval,
        &command_reward, &command_report, &command_watch, &command_show, &command_convert, &command_data, &command_launch, &command_doctor,
        &command_size, &command_forecast, &command_cost, &command_bench, &command_manual, NULL};
    return commands[index];
}

static const CommandName other_names[] = {{"finetune", "train init=MODEL"}, {"fine-tune", "train init=MODEL"}, {"sft", "train init=MODEL"},
    {"dpo", "train init=MODEL preference.loss=dpo"}, {"grpo", "train init=MODEL rl.loss=grpo"}, {"rl", "train init=MODEL rl.loss=grpo"},
    {"lora", "train init=MODEL lora.rank=16"}, {"pretrain", "train"}, {"resume", "train RUN"}, {"merge", "convert"}, {"export", "convert"},
    {"quantize", "convert"}, {"import", "convert"}, {"pack", "data pack"}, {"tokenize", "data pack"}, {"preprocess", "data pack"},
    {"prepare", "data pack"}, {"sample", "generate"}, {"infer", "generate"}, {"inference", "generate"}, {"complete", "generate"},
    {"run", "generate"}, {"evaluate", "eval"}, {"benchmark", "bench"}, {"test", "eval"}, {"server", "serve"}, {"api", "serve"},
    {"dashboard", "watch"}, {"monitor", "watch"}, {"ui", "watch"}, {"webui", "watch"}, {"tensorboard", "watch"}, {"compare", "report"},
    {"plot", "report"}, {"list", "watch"}, {"info", "show"}, {"inspect", "show"}, {"status", "show"}, {"check", "doctor"},
    {"env", "doctor"}, {"estimate", "forecast"}, {"plan", "size"}, {"price", "cost"}, {"torchrun", "launch"}, {"distributed", "launch"},
    {0}};

const Command command_smelt = {
    .name = "",
    .other_names = other_names,
    .explanation = "smelt trains large language models. smelt train --example llama prints a configuration to start from, smelt train "
                   "--help lists all settings, smelt --version prints the build.",
    .member = member,
};
