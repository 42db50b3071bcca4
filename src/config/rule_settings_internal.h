/* Lists of settings in rules of families and optimizers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns whether `setting` is "GROUP.NAME" with a NAME of the list, which ends with NULL. */
bool rule_lists(const char *const *settings, const char *group, const char *setting);
/* Appends `name` to "a, b or c"; `left` names, including this one, are missing. */
void rule_append_name(char *text, size_t size, const char *name, int left);
