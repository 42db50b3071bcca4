/* The program itself: its commands, in the order of use. */
#include "app/command.h"

static const Command *member(int index) {
    static const Command *const commands[] = {&command_train, &command_generate, &command_chat, &command_serve, &command_eval,
        &command_reward, &command_report, &command_watch, &command_show, &command_convert, &command_data, &command_launch, &command_doctor,
        &command_size, &command_forecast, &command_cost, &command_bench, &command_manual, NULL};
    return commands[index];
}

const Command command_smelt = {
    .name = "",
    .explanation = "smelt trains large language models. smelt train --example llama prints a configuration to start from, smelt train "
                   "--help lists all settings, smelt --version prints the build.",
    .member = member,
};
