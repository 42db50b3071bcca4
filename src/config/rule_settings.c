/* Lists of settings in rules of families and optimizers. Owns nothing; called by needs.c and the tables of rules. */
#include "config/rule_settings_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/strings.h"

bool rule_lists(const char *const *settings, const char *group, const char *setting) {
    if (!starts_with(setting, group)) return false;
    for (const char *const *name = settings; *name; name++)
        if (!strcmp(*name, setting + strlen(group))) return true;
    return false;
}

void rule_append_name(char *text, size_t size, const char *name, int left) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", !used ? "" : left == 1 ? " or " : ", ", name);
}
