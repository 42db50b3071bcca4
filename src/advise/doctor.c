/* The list of lines, its printing, and reading files below a root. Owns the lines' texts. */
#include "advise/doctor.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/memory.h"

static const char *const words[] = {"ok", "warning", "error"};

/* -- Lines --------------------------------------------------------------------------------------------------------- */

/* Replaces all control characters, because the texts of other programs and files are printed on a
 * terminal. */
static void make_printable(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = ' ';
}

void doctor_add(Doctor *doctor, Severity health, const char *check, const char *fix, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    make_printable(text);
    DoctorLine line = {.health = health, .check = check, .text = memory_copy_string(text), .fix = memory_copy_string(fix)};
    array_append(doctor->lines, doctor->count, line);
}

void doctor_examine(Doctor *doctor, const char *root, const char *folder, bool self_test) {
    *doctor = (Doctor){.root = root};
    doctor_find_gpus(doctor);
    doctor_check_system(doctor);
    doctor_check_memory(doctor);
    doctor_check_libraries(doctor);
    doctor_check_gpus(doctor);
    doctor_check_network(doctor);
    doctor_check_variables(doctor);
    if (*folder) doctor_check_disk(doctor, folder);
    if (!self_test) return;
    doctor_check_collective(doctor);
    doctor_check_work(doctor);
}

void doctor_free(Doctor *doctor) {
    for (int i = 0; i < doctor->count; i++) {
        free(doctor->lines[i].text);
        free(doctor->lines[i].fix);
    }
    free(doctor->lines);
    *doctor = (Doctor){0};
}

int doctor_worst(const Doctor *doctor, int *warnings, int *errors) {
    *warnings = *errors = 0;
    for (int i = 0; i < doctor->count; i++) {
        *warnings += doctor->lines[i].health == HEALTH_WARNING;
        *errors += doctor->lines[i].health == HEALTH_ERROR;
    }
    return *errors ? HEALTH_ERROR : *warnings ? HEALTH_WARNING : HEALTH_OK;
}

void doctor_print(const Doctor *doctor, FILE *file) {
    int warnings, errors;
    for (int i = 0; i < doctor->count; i++) {
        const DoctorLine *line = &doctor->lines[i];
        fprintf(file, "%-8s %-22s %s\n", words[line->health], line->check, line->text);
        if (*line->fix) fprintf(file, "%-8s %-22s fix: %s\n", "", "", line->fix);
    }
    doctor_worst(doctor, &warnings, &errors);
    fprintf(file, "\n%d error%s, %d warning%s\n", errors, errors == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s");
}

/* Returns the text as JSON; a text that is not UTF-8 becomes "?". */
static json_t *escape_json(const char *text) {
    json_t *string = json_string(text);
    return string ? string : json_string("?");
}

void doctor_print_json(const Doctor *doctor, FILE *file) {
    int warnings, errors;
    json_t *lines = json_array();
    for (int i = 0; i < doctor->count; i++) {
        const DoctorLine *line = &doctor->lines[i];
        json_array_append_new(lines, json_pack("{s:s, s:s, s:o, s:o}", "check", line->check, "health", words[line->health], "text",
                                         escape_json(line->text), "fix", escape_json(line->fix)));
    }
    int worst = doctor_worst(doctor, &warnings, &errors);
    json_t *all = json_pack("{s:s, s:i, s:i, s:o}", "health", words[worst], "errors", errors, "warnings", warnings, "lines", lines);
    json_dumpf(all, file, JSON_INDENT(1));
    putc('\n', file);
    json_decref(all);
}

/* -- Files --------------------------------------------------------------------------------------------------------- */

static char *path_below(const Doctor *doctor, const char *format, va_list arguments) {
    char path[1024];
    vsnprintf(path, sizeof path, format, arguments);
    return memory_format("%s%s", doctor->root, path);
}

/* Declares `path`: the root of `doctor`, followed by the text that a variadic function's
 * `format` and arguments give. */
#define FORMAT_PATH(scope, path)                                                                                                          \
    va_list arguments;                                                                                                                    \
    va_start(arguments, format);                                                                                                          \
    scope char *path = path_below(doctor, format, arguments);                                                                             \
    va_end(arguments)

char *doctor_path(const Doctor *doctor, const char *format, ...) {
    FORMAT_PATH(, path);
    return path;
}

bool doctor_exists(const Doctor *doctor, const char *path) {
    SCOPED_FREE char *full = doctor_path(doctor, "%s", path);
    return file_exists(full);
}

static bool read_system_file(const char *path, char *text, size_t size) {
    int64_t length = file_read_start(path, text, size);
    while (length > 0 && isspace((unsigned char)text[length - 1])) text[--length] = '\0';
    return length >= 0;
}

bool doctor_read(const Doctor *doctor, char *text, size_t size, const char *format, ...) {
    FORMAT_PATH(SCOPED_FREE, path);
    return read_system_file(path, text, size);
}

int64_t doctor_read_number(const Doctor *doctor, int64_t otherwise, const char *format, ...) {
    char text[64], *end;
    FORMAT_PATH(SCOPED_FREE, path);
    bool done = read_system_file(path, text, sizeof text);
    errno = 0;
    int64_t number = strtoll(text, &end, 0);
    return !done || end == text || errno ? otherwise : number;
}

int doctor_list(const Doctor *doctor, char names[][DOCTOR_NAME], int most, const char *format, ...) {
    SCOPED(file_list_free) FileList list;
    Error ignored;
    FORMAT_PATH(SCOPED_FREE, path);
    int count = 0;
    file_list(path, &list, &ignored);
    for (size_t i = 0; i < list.count && count < most; i++) {
        const char *name = list.entries[i].name;
        if (name[0] != '.' && strlen(name) < DOCTOR_NAME) strcpy(names[count++], name);
    }
    return count;
}
