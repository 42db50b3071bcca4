/* All families of models, in the order of Family. Each line stands for a FamilyRule family_NAME, the rule in src/families/NAME.c. */
FAMILY(zaya)
FAMILY(llama)
FAMILY(mpt)
FAMILY(gpt2)
FAMILY(flux)
