package plan

import _ "embed"

//go:embed change.schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of change.yaml, for editors. [Load] is stricter where a schema cannot be.
func Schema() []byte { return append([]byte(nil), schema...) }
