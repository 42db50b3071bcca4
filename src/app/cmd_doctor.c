/* `smelt doctor [self_test=true] [folder=DIR] [--json]` */
#include <stddef.h>
#include <stdio.h>

#include "app/command.h"
#include "base/scope.h"
#include "advise/doctor.h"

typedef struct DoctorOptions {
    const char *folder;
    bool self_test, names, json, strict;
} DoctorOptions;

#define FIELD(name) offsetof(DoctorOptions, name)
static const Option rows[] = {
    STRING_OPTION(folder, ".", "", "folder for the disk test; empty: none"),
    BOOL_OPTION(self_test, "false", "also test compute, copies and communication, in under a minute"),
    BOOL_OPTION(names, "false", "also list variables and tools of CUDA with their ROCm equivalents"),
    BOOL_OPTION(json, "false", "print JSON instead of text"),
    BOOL_OPTION(strict, "false", "exit with 1 also after warnings"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

static void print_doctor_page(const Doctor *doctor) {
    SCOPED(command_page_print) CommandPage page;
    command_page_open(&page);
    doctor_print(doctor, page.file);
}

static bool run_doctor(Invocation *invocation, Error *error) {
    const DoctorOptions *options = invocation->options;
    Doctor doctor;
    int warnings, errors;
    (void)error;
    doctor_examine(&doctor, "", options->folder, options->self_test);
    if (options->names) doctor_list_names(&doctor);
    if (options->json) doctor_print_json(&doctor, stdout); /* for programs: no line wrapping */
    else print_doctor_page(&doctor);
    int worst = doctor_worst(&doctor, &warnings, &errors);
    if (worst == HEALTH_ERROR || (options->strict && worst == HEALTH_WARNING)) invocation->code = ERROR_INTERNAL;
    doctor_free(&doctor);
    return true;
}

const Command command_doctor = {
    .name = "doctor",
    .summary = "check this machine for training",
    .words = "",
    .explanation =
        "Checks this machine for training. Each line is ok, a warning or an error, and names the fix. Needs no privileges and changes "
        "nothing;\nthe disk test removes its file. Exits with 0 if there is no error, else with 1. docs/doctor.md shows examples.\n",
    .table = &table,
    .options_size = sizeof(DoctorOptions),
    .alone = true,
    .run = run_doctor,
};
