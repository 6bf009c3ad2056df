SELECT * FROM hapax_list_claims($1, $2, $3, $4, $5, $6, $7)
