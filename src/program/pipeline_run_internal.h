/* Runs a stage of a pipeline: executes the parts of a program by a schedule, and receives and sends
 * the data between chunks of layers. Owned by the program. */
#pragma once

#include "program/program.h"

/* The program has its executor and exchange; it must not move while the run exists. */
PipelineRun *pipeline_run_create(const Program *program);
void pipeline_run_free(PipelineRun *run);
/* Runs all microbatches through this stage. Collective over the stages. */
void pipeline_run_step(PipelineRun *run, const ProgramWork *work);
