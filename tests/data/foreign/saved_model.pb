 
"serve