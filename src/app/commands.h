/* The commands. Each takes the arguments from its own name on and returns the process's exit code; failures are printed once, by cmd_fail. */
#pragma once

#include "graph/graph.h"

int cmd_train(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_size(int argc, char **argv);
int cmd_cost(int argc, char **argv);
int cmd_forecast(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

/* The device that `device=` names (DeviceKind); with auto the CPU where the precision is one that GPUs do not have. ERROR_USAGE. */
Device *cmd_open_device(int choice, Precision precision, Error *error);
/* Prints the error and returns its code. */
int cmd_fail(const Error *error);
